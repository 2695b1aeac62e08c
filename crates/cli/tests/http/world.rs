//! A small internet around a test (tests/network/world.py): the test runs itself again inside of it, so that the server, its sandboxes and
//! the test share a network.

use std::process::Command;

use serde_json::Value;

const WORLD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/network/world.py");
/// Set inside of the world, to the path of its log.
const LOG: &str = "WORLD_LOG";

/// Runs the body in the world. `name` is the test's own name.
pub fn in_world(name: &str, body: impl FnOnce()) {
    if std::env::var_os(LOG).is_some() {
        return body();
    }
    let log = std::env::temp_dir().join(format!("saggar-world-{}-{name}.log", std::process::id()));
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "python3", WORLD]).arg(&log).arg(std::env::current_exe().expect("a test"));
    let status = command.args(["--exact", name, "--nocapture"]).env(LOG, &log).status();
    let seen = std::fs::read_to_string(&log).unwrap_or_default();
    std::fs::remove_file(&log).expect("the world wrote it");
    assert!(status.expect("unshare is part of every Linux").success(), "servers saw: {seen}");
}

/// What servers saw, as `METHOD PATH at ADDRESS`.
pub fn seen() -> Vec<String> {
    let text = std::fs::read_to_string(std::env::var_os(LOG).expect("in the world")).expect("the world writes it");
    let entry = |line: &str| {
        let entry: Value = serde_json::from_str(line).expect("JSON");
        let word = |name: &str| entry[name].as_str().unwrap_or("raw").to_owned();
        format!("{} {} at {}", word("method"), word("path"), word("server"))
    };
    text.lines().map(entry).collect()
}
