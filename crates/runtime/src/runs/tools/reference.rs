//! Checks that the catalogue, what the code reads and docs/tools.md are the same.

use std::collections::{BTreeMap, BTreeSet};

use saggar_engine::{BuiltIn, Class};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::tool::{Performer, Tool};
use super::{CATALOGUE, code, edit, files, http, shell};

const REFERENCE: &str = include_str!("../../../../../docs/tools.md");

/// The names of a type's fields, from its own error about an unknown one.
fn fields<T: DeserializeOwned>(arguments: &str) -> BTreeSet<String> {
    let Err(error) = serde_json::from_str::<T>(arguments) else { panic!("{arguments} has no unknown field") };
    let error = error.to_string();
    let (_, expected) = error.split_once("expected").unwrap_or_else(|| panic!("{error}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The arguments that the catalogue names, by tool.
fn described() -> BTreeMap<&'static str, BTreeSet<String>> {
    let names = |tool: &Tool| tool.arguments().properties().map(str::to_owned).collect();
    CATALOGUE.iter().map(|tool| (tool.name, names(tool))).collect()
}

/// The section of each tool.
fn sections() -> BTreeMap<&'static str, &'static str> {
    let sections = REFERENCE.split("\n## ").skip(1).filter_map(|section| section.split_once('\n'));
    sections.filter(|(title, _)| Tool::find(title).is_some()).collect()
}

/// The rows of a section's first table, which is that of the arguments: the name and the second column.
fn rows(section: &'static str) -> BTreeMap<&'static str, &'static str> {
    let table = section.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = table.filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    cells.map(|(name, rest)| (name, rest.split('|').next().unwrap_or_default().trim())).collect()
}

#[test]
fn the_reference_names_every_tool_and_every_argument() {
    let documented: BTreeMap<&str, BTreeSet<String>> = sections()
        .into_iter()
        .map(|(tool, section)| (tool, rows(section).into_keys().map(str::to_owned).collect()))
        .collect();
    assert_eq!(documented, described());
    for (tool, section) in sections() {
        let schema = Tool::find(tool).unwrap().arguments().as_value();
        let required: BTreeSet<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let documented = rows(section).into_iter().filter(|(_, needed)| *needed == "required").map(|(name, _)| name);
        assert_eq!(documented.collect::<BTreeSet<_>>(), required, "{tool}: what is required");
    }
}

#[test]
fn executors_read_the_arguments_that_the_catalogue_names() {
    let of_op = |op: &str| fields::<files::Arguments>(&format!("{{\"op\": {op:?}, \"?\": 1}}"));
    let files =
        ["read", "write", "list", "search", "remove"].into_iter().flat_map(of_op).chain(["op".to_owned()]).collect();
    let of_edit = |op: &str| fields::<edit::Arguments>(&format!("{{\"op\": {op:?}, \"?\": 1}}"));
    let edits = ["view", "create", "replace", "insert", "undo"];
    let edit = edits.into_iter().flat_map(of_edit).chain(["op".to_owned()]).collect();
    let described = described();
    for (tool, read) in [
        ("shell", fields::<shell::Arguments>("{\"?\": 1}")),
        ("code", fields::<code::Arguments>("{\"?\": 1}")),
        ("files", files),
        ("edit", edit),
        ("http", fields::<http::Arguments>("{\"?\": 1}")),
    ] {
        assert_eq!(described[tool], read, "{tool}");
    }
}

#[test]
fn the_reference_tells_the_class_of_every_tool() {
    for (name, section) in sections() {
        let class = match Tool::find(name).unwrap().class {
            Class::Pure => "pure",
            Class::Keyed => "keyed",
            Class::Probeable => "probeable",
            Class::Once => "once",
            Class::Model => "model",
        };
        assert!(section.contains(&format!("Class: `{class}`")), "{name} is {class}");
    }
}

#[test]
fn every_tool_is_described_and_refuses_an_argument_that_it_does_not_know() {
    let mut names = BTreeSet::new();
    for tool in CATALOGUE {
        assert!(names.insert(tool.name), "{} is there twice", tool.name);
        assert!(!tool.description.is_empty() && tool.risk <= 100, "{}", tool.name);
        let schema = tool.arguments().as_value();
        assert_eq!(
            (&schema["type"], &schema["additionalProperties"]),
            (&"object".into(), &false.into()),
            "{}",
            tool.name
        );
        let complaint = tool.check("{\"?\": 1}").unwrap_err();
        assert!(complaint.starts_with(&format!("the arguments of {} are invalid", tool.name)), "{complaint}");
        if let Performer::Executor { probe, .. } = tool.performer {
            assert_eq!(probe.is_some(), tool.class == Class::Probeable, "{}", tool.name);
        }
    }
}

#[test]
fn the_engine_reads_what_the_catalogue_allows() {
    for tool in BuiltIn::TOOLS {
        let described = Tool::find(tool.name).unwrap();
        let schema = described.arguments().as_value();
        let whole: BTreeMap<&str, Value> = described
            .arguments()
            .properties()
            // An answer is either a text or an object.
            .filter(|name| *name != "output")
            .map(|name| (name, if schema["properties"][name]["type"] == "integer" { 1.into() } else { "text".into() }))
            .collect();
        let text = serde_json::to_string(&whole).unwrap();
        assert_eq!(described.check(&text).map(drop), Ok(()));
        assert!(matches!(BuiltIn::parse(tool.name, &text), Some(Ok(_))), "{}", tool.name);
        for name in schema["required"].as_array().into_iter().flatten() {
            let mut without = whole.clone();
            without.remove(name.as_str().unwrap());
            let without = serde_json::to_string(&without).unwrap();
            assert!(described.check(&without).is_err());
            assert!(matches!(BuiltIn::parse(tool.name, &without), Some(Err(_))), "{} needs {name}", tool.name);
        }
    }
}
