//! The references of the sandbox spec and of the agent spec name every field that the program reads, and no other.
//!
//! The program says itself which fields it knows, when it is given one that it doesn't.

mod harness;

use std::collections::BTreeSet;
use std::path::Path;

use harness::{Place, finish};

/// The fields of a declared tool alone, which are beside those of every tool.
const DECLARED: (&str, &str) = ("docs/tools.md", "## An endpoint of your own");

/// A file with a field that there isn't, by page and heading of the table for that part of it.
const PARTS: &[(&str, &str, &str)] = &[
    ("docs/spec.md", "## Fields", r#"{"?": 1}"#),
    ("docs/spec.md", "### `limits`", r#"{"limits": {"?": 1}}"#),
    ("docs/spec.md", "### `egress`", r#"{"egress": {"?": 1}}"#),
    ("docs/spec.md", "### `mounts`", r#"{"mounts": [{"?": 1}]}"#),
    ("docs/agent.md", "## Fields", r#"{"?": 1}"#),
    ("docs/agent.md", "### `model`", r#"{"name": "a", "task": "b", "model": {"?": 1}}"#),
    (
        "docs/agent.md",
        "### Each tool of `tools`",
        r#"{"name": "a", "task": "b", "model": {"provider": "scripted"}, "tools": {"shell": {"?": 1}}}"#,
    ),
    (
        "docs/agent.md",
        "### `budget`",
        r#"{"name": "a", "task": "b", "model": {"provider": "scripted"}, "budget": {"?": 1}}"#,
    ),
];

fn section(page: &str, heading: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
    let (_, rest) = text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("{page} has no {heading}"));
    rest.split("\n#").next().expect("there is a first part").to_owned()
}

/// The first column of a table.
fn documented(section: &str) -> BTreeSet<String> {
    section.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned())).collect()
}

/// The fields that the program knows, as it says when it is given another.
fn known(page: &str, file: &str) -> BTreeSet<String> {
    let place = Place::new();
    let file = place.write("given.json", file).display().to_string();
    let words =
        if page == "docs/spec.md" { vec!["run", "--spec", &file, "true"] } else { vec!["runs", "start", &file] };
    let said = finish(place.command(words).spawn().expect("the binary was built")).stderr;
    // Two names are joined by "or", without "one of".
    let (_, names) = said.split_once(", expected ").unwrap_or_else(|| panic!("{page}: {said}"));
    names.lines().next().expect("a line").split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_references_name_every_field_and_no_other() {
    for (page, heading, file) in PARTS {
        let mut told = documented(&section(page, heading));
        if heading.contains("`tools`") {
            told.extend(documented(&section(DECLARED.0, DECLARED.1)));
        }
        assert_eq!(told, known(page, file), "{page}, {heading}");
    }
}

#[test]
fn the_reference_of_agents_names_the_fields_of_the_agents_they_start() {
    let section = section("docs/agent.md", "### Each agent of `agents`");
    let sentence = section.split('.').next().expect("a sentence");
    let told: BTreeSet<String> = sentence.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let file = r#"{"name": "a", "task": "b", "model": {"provider": "scripted"}, "agents": {"x": {"?": 1}}}"#;
    assert_eq!(told, known("docs/agent.md", file));
}
