//! Checks the tool reference in `docs/tools.md` against the arguments that the code reads.

use std::collections::{BTreeMap, BTreeSet};

use saggar_engine::{BuiltIn, Class};
use serde::de::DeserializeOwned;

use super::{TOOLS, default_class, files, http, shell};

const REFERENCE: &str = include_str!("../../../../../docs/tools.md");

/// The names of a type's fields, from its own error about an unknown one.
fn fields<T: DeserializeOwned>(arguments: &str) -> BTreeSet<String> {
    let Err(error) = serde_json::from_str::<T>(arguments) else { panic!("{arguments} has no unknown field") };
    let error = error.to_string();
    let (_, expected) = error.split_once("expected").unwrap_or_else(|| panic!("{error}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The arguments that the code reads, by tool.
fn read() -> BTreeMap<String, BTreeSet<String>> {
    let of_op = |op: &str| fields::<files::Arguments>(&format!("{{\"op\": {op:?}, \"?\": 1}}"));
    let files = ["read", "write", "list", "remove"].into_iter().flat_map(of_op).chain(["op".to_owned()]).collect();
    let built_in = BuiltIn::TOOLS.map(|(tool, names)| (tool, names.iter().map(|name| (*name).to_owned()).collect()));
    let own = [
        ("shell", fields::<shell::Arguments>("{\"?\": 1}")),
        ("files", files),
        ("http", fields::<http::Arguments>("{\"?\": 1}")),
    ];
    own.into_iter().chain(built_in).map(|(tool, names)| (tool.to_owned(), names)).collect()
}

/// The section of each tool.
fn sections() -> BTreeMap<&'static str, &'static str> {
    let sections = REFERENCE.split("\n## ").skip(1).filter_map(|section| section.split_once('\n'));
    sections.filter(|(title, _)| TOOLS.contains(title)).collect()
}

#[test]
fn the_reference_names_every_tool_and_the_arguments_that_it_reads() {
    let documented: BTreeMap<String, BTreeSet<String>> = sections()
        .into_iter()
        .map(|(tool, section)| {
            // Arguments are in the first table; others explain values.
            let table =
                section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
            let rows = table.filter_map(|line| line.strip_prefix("| `"));
            (tool.to_owned(), rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned())).collect())
        })
        .collect();
    assert_eq!(documented, read());
    assert_eq!(documented.len(), TOOLS.len());
}

#[test]
fn the_reference_tells_the_class_of_every_tool() {
    for (tool, section) in sections() {
        let class = match default_class(tool) {
            Class::Pure => "pure",
            Class::Keyed => "keyed",
            Class::Probeable => "probeable",
            Class::Once => "once",
            Class::Model => "model",
        };
        assert!(section.contains(&format!("Class: `{class}`")), "{tool} is {class}");
    }
}

#[test]
fn the_engines_own_tools_read_the_arguments_that_they_say() {
    for (tool, names) in BuiltIn::TOOLS {
        let arguments: BTreeMap<&str, serde_json::Value> =
            names.iter().map(|name| (*name, if *name == "seconds" { 1.into() } else { "text".into() })).collect();
        let whole = serde_json::to_string(&arguments).unwrap();
        assert!(matches!(BuiltIn::parse(tool, &whole), Some(Ok(_))), "{tool}");
        let mut without = arguments.clone();
        without.remove(names[0]);
        let without = serde_json::to_string(&without).unwrap();
        assert!(matches!(BuiltIn::parse(tool, &without), Some(Err(_))), "{tool} needs {}", names[0]);
    }
}
