//! The table of settings in docs/server.md: every setting is there, and nothing else.

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn every_setting_stands_in_the_table_of_the_manual() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/server.md");
    let page = std::fs::read_to_string(page).expect("it is there");
    let (_, table) = page.split_once("| setting | default | |\n").expect("the page has a table of settings");
    let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|line| line.split(" | ").next());
    let told: BTreeSet<&str> = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let there: BTreeSet<&str> = saggar_server::names().map(|(name, _)| name).collect();
    assert_eq!(told, there);
}
