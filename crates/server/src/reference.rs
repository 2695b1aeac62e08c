//! The API reference for people, generated from the OpenAPI document.

mod example;

use std::fmt::Write;

use serde_json::Value;

use crate::openapi::text;
use example::{EXAMPLES, PREPARATION, position};

/// The introduction.
const PREFACE: &str = "# API\n\n\
    Made from [openapi.json](openapi.json), which the server also serves at `/api/v1/openapi.json`. Don't edit it: a test fails when it is stale.\n\n\
    - Every request except `/health` needs a key: `Authorization: Bearer sgr_…` or `X-API-Key: sgr_…`.\n\
    - Every error is `application/problem+json` with a stable `code`, a `detail` that names the object, and `help` that says what to do next.\n\
    - Bodies are JSON unless another type is named. Unknown fields are refused by name.\n\
    - Sizes are written `512M`, time spans `5m`, instants `2026-11-15T12:00:00Z`.\n\
    - Ports of a sandbox are not part of this reference: see [ports](server.md#ports).\n\n";

/// The reference as Markdown.
pub fn markdown() -> String {
    let document: Value = serde_json::from_str(text()).expect("our own document is JSON");
    let mut out = format!("{PREFACE}{PREPARATION}");
    // Writing to a string can't fail.
    let _ = operations(&mut out, &document)
        .and_then(|()| codes(&mut out, &document))
        .and_then(|()| schemas(&mut out, &document));
    out
}

fn operations(out: &mut String, document: &Value) -> std::fmt::Result {
    for tag in document["tags"].as_array().into_iter().flatten() {
        let name = tag["name"].as_str().unwrap_or_default();
        writeln!(out, "\n## {name}\n\n{}\n", tag["description"].as_str().unwrap_or_default())?;
        let paths = document["paths"].as_object().into_iter().flatten();
        let operations = paths.flat_map(|(path, item)| {
            item.as_object().into_iter().flatten().map(move |(method, operation)| (path, method, operation))
        });
        let mut operations: Vec<_> = operations.filter(|(_, _, operation)| operation["tags"][0] == name).collect();
        operations.sort_by_key(|(_, _, operation)| position(&text_of(&operation["operationId"])));
        for (path, method, operation) in operations {
            one(out, &method.to_uppercase(), path, operation)?;
        }
    }
    Ok(())
}

fn one(out: &mut String, method: &str, path: &str, operation: &Value) -> std::fmt::Result {
    writeln!(out, "### {method} {path}\n\n{}.", operation["summary"].as_str().unwrap_or_default())?;
    if let Some(description) = operation["description"].as_str() {
        writeln!(out, "{}", description.replace('\n', " "))?;
    }
    let parameters: Vec<&Value> = operation["parameters"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|parameter| parameter["in"] != "path")
        .collect();
    if !parameters.is_empty() {
        writeln!(out, "\n| parameter | in | |\n|---|---|---|")?;
        for parameter in parameters {
            let needed = if parameter["required"] == true { " (needed)" } else { "" };
            let what = parameter["description"].as_str().unwrap_or_default();
            writeln!(out, "| `{}`{needed} | {} | {what} |", text_of(&parameter["name"]), text_of(&parameter["in"]))?;
        }
    }
    if let Some(content) = operation["requestBody"]["content"].as_object() {
        let kinds: Vec<String> = content.iter().map(|(kind, body)| shape(kind, body)).collect();
        writeln!(out, "\nBody: {}.", kinds.join(" or "))?;
    }
    writeln!(out)?;
    for (status, response) in operation["responses"].as_object().into_iter().flatten() {
        if status == "default" {
            continue;
        }
        let kinds: Vec<String> =
            response["content"].as_object().into_iter().flatten().map(|(kind, body)| shape(kind, body)).collect();
        let kinds = if kinds.is_empty() { String::new() } else { format!(": {}", kinds.join(" or ")) };
        writeln!(out, "- {status} {}{kinds}", text_of(&response["description"]))?;
    }
    example(out, operation)?;
    writeln!(out)
}

fn example(out: &mut String, operation: &Value) -> std::fmt::Result {
    let example = EXAMPLES.iter().find(|example| operation["operationId"] == example.operation);
    let Some(example) = example.filter(|example| !example.text.is_empty()) else { return Ok(()) };
    let language = if example.text.starts_with("$ ") { "console" } else { "sh" };
    let mark = example.mark.map(|mark| format!("<!-- {mark} -->\n")).unwrap_or_default();
    writeln!(out, "\n{mark}```{language}\n{}\n```", example.text)
}

/// A body's media type and its schema, if it has one.
fn shape(kind: &str, body: &Value) -> String {
    match body["schema"]["$ref"].as_str().and_then(|target| target.rsplit('/').next()) {
        Some(name) => format!("[{name}](#{}) as `{kind}`", name.to_lowercase()),
        None => format!("`{kind}`"),
    }
}

fn codes(out: &mut String, document: &Value) -> std::fmt::Result {
    writeln!(out, "## Codes of problems\n\n| code | status | |\n|---|---|---|")?;
    let known = document["components"]["schemas"]["ProblemCode"]["enum"].as_array();
    for code in known.into_iter().flatten().filter_map(Value::as_str).map(saggar_api::Code::parse) {
        writeln!(out, "| `{code}` | {} | {} |", code.status(), code.title())?;
    }
    Ok(())
}

fn schemas(out: &mut String, document: &Value) -> std::fmt::Result {
    writeln!(out, "\n## Schemas")?;
    for (name, schema) in document["components"]["schemas"].as_object().into_iter().flatten() {
        writeln!(out, "\n### {name}\n")?;
        if let Some(description) = schema["description"].as_str() {
            writeln!(out, "{}\n", description.replace('\n', " "))?;
        }
        if let Some(values) = schema["enum"].as_array().filter(|_| name != "ProblemCode") {
            let values: Vec<String> = values.iter().map(|value| format!("`{}`", text_of(value))).collect();
            writeln!(out, "One of {}.", values.join(", "))?;
        }
        for variant in schema["oneOf"].as_array().into_iter().flatten() {
            let tag = variant["properties"]["type"]["enum"][0].as_str();
            let value = variant["enum"][0].as_str();
            let what = variant["description"].as_str().unwrap_or_default();
            if let Some(name) = tag.or(value) {
                writeln!(out, "- `{name}`: {what}")?;
            }
        }
        let fields = fields_of(document, schema);
        if !fields.is_empty() {
            writeln!(out, "| field | type | |\n|---|---|---|")?;
            for (field, about) in fields {
                let what = about["description"].as_str().unwrap_or_default().replace('\n', " ");
                writeln!(out, "| `{field}` | {} | {what} |", kind_of(about))?;
            }
        }
    }
    Ok(())
}

/// The fields of an object, including those of the objects that are flattened into it.
fn fields_of<'a>(document: &'a Value, schema: &'a Value) -> Vec<(&'a String, &'a Value)> {
    let mut fields: Vec<_> = schema["properties"].as_object().into_iter().flatten().collect();
    for part in schema["allOf"].as_array().into_iter().flatten() {
        let named = part["$ref"].as_str().and_then(|target| target.rsplit('/').next());
        fields.extend(fields_of(document, named.map_or(part, |name| &document["components"]["schemas"][name])));
    }
    fields
}

/// A field's type in a word or two.
fn kind_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|target| target.rsplit('/').next()) {
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if let Some(choices) = schema["oneOf"].as_array().or(schema["allOf"].as_array()) {
        return choices.iter().map(kind_of).collect::<Vec<_>>().join(" or ");
    }
    match &schema["type"] {
        Value::Array(kinds) => kinds.iter().map(text_of).collect::<Vec<_>>().join(" or "),
        Value::String(kind) if kind == "array" => format!("list of {}", kind_of(&schema["items"])),
        Value::String(kind) => kind.clone(),
        _ => "anything".to_owned(),
    }
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_operation_has_an_example_and_every_example_an_operation() {
        let document: Value = serde_json::from_str(text()).unwrap();
        let items = document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap().values());
        let operations: BTreeSet<String> = items.map(|operation| text_of(&operation["operationId"])).collect();
        let examples: BTreeSet<String> = EXAMPLES.iter().map(|example| example.operation.to_owned()).collect();
        assert_eq!(operations, examples);
        assert_eq!(EXAMPLES.len(), examples.len(), "one each");
        // Attaching to an exec needs a WebSocket, which common command-line tools don't support.
        let without: Vec<&str> =
            EXAMPLES.iter().filter(|example| example.text.is_empty()).map(|example| example.operation).collect();
        assert_eq!(without, ["attachExec"]);
    }
}
