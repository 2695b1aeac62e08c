//! The generated documents must be up to date. `SAGGAR_WRITE_DOCS=1` regenerates them.

use std::path::{Path, PathBuf};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn check(name: &str, made: &str) {
    let path = docs().join(name);
    if std::env::var_os("SAGGAR_WRITE_DOCS").is_some() {
        std::fs::write(&path, made).expect("docs/ can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == made,
        "docs/{name} is stale: run SAGGAR_WRITE_DOCS=1 cargo test --package saggar-server --test openapi"
    );
}

#[test]
fn the_openapi_document_is_the_one_that_is_kept() {
    check("openapi.json", saggar_server::openapi_text());
}

#[test]
fn the_reference_is_the_one_that_is_kept() {
    check("api.md", &saggar_server::api_reference());
}

#[test]
fn every_reference_in_the_document_leads_somewhere_and_every_operation_has_a_name() {
    let document: serde_json::Value = serde_json::from_str(saggar_server::openapi_text()).expect("it is JSON");
    let schemas = document["components"]["schemas"].as_object().expect("there are schemas");
    let mut waiting = vec![&document];
    let mut seen = 0;
    while let Some(value) = waiting.pop() {
        match value {
            serde_json::Value::Object(fields) => {
                if let Some(target) = fields.get("$ref").and_then(|target| target.as_str()) {
                    let name = target.strip_prefix("#/components/schemas/").expect("only schemas are referred to");
                    assert!(schemas.contains_key(name), "{target}");
                    seen += 1;
                }
                waiting.extend(fields.values());
            }
            serde_json::Value::Array(values) => waiting.extend(values),
            _ => {}
        }
    }
    assert!(seen > 50, "{seen}");
    let mut names = std::collections::BTreeSet::new();
    // A body of bytes must not be described as a list of numbers, as for a `Vec<u8>`.
    for kind in ["octet-stream", "x-tar"] {
        let pointer = format!("\"application/{kind}\": {{\n");
        let mut bodies = saggar_server::openapi_text().split(pointer.as_str()).skip(1).peekable();
        assert!(bodies.peek().is_some(), "{kind}");
        assert!(
            bodies.all(|body| body.split('}').next().is_some_and(|schema| schema.contains("\"binary\""))),
            "{kind}"
        );
    }
    for (path, item) in document["paths"].as_object().expect("there are paths") {
        for (method, operation) in item.as_object().expect("an item is an object") {
            let name = operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path} has no name"));
            assert!(names.insert(name.to_owned()), "{name} twice");
            assert!(operation["summary"].is_string(), "{method} {path} says nothing");
            assert!(operation["responses"]["default"].is_object(), "{method} {path} has no problem");
        }
    }
}
