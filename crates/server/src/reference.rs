//! The API reference for people, made from the OpenAPI document.

use std::fmt::Write;

use serde_json::Value;

use crate::openapi::text;

/// What comes first.
const PREFACE: &str = "# API\n\n\
    Made from [openapi.json](openapi.json), which the server also gives at `/api/v1/openapi.json`. Don't edit: a test fails when it is stale.\n\n\
    Every request but `/health` carries a key: `Authorization: Bearer sgr_…` or `X-API-Key: sgr_…`. Every error is `application/problem+json`\n\
    with a stable `code`, a `detail` that names the object, and `help` that says what to do next. Bodies are JSON unless another type is named;\n\
    unknown fields are refused by name. Sizes are written `512M`, time spans `5m`, instants `2026-11-15T12:00:00Z`.\n\n\
    What listens in a sandbox is reached at `/api/v1/sandboxes/{id}/ports/{port}/…`, at any path with the headers `Saggar-Sandbox` and\n\
    `Saggar-Port`, or at the host `{port}-{id}.DOMAIN`: with a key, with the sandbox's access token (`Saggar-Access-Token`, or once as\n\
    `?saggar_token=`, which becomes a cookie), or without anything where the port was declared public. By path a page shares the API's\n\
    origin and is therefore told to act as an origin of its own (`Content-Security-Policy: sandbox`); by host it has one.\n";

/// The reference as Markdown.
pub fn markdown() -> String {
    let document: Value = serde_json::from_str(text()).expect("our own document is JSON");
    let mut out = PREFACE.to_owned();
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
        for (path, item) in document["paths"].as_object().into_iter().flatten() {
            for (method, operation) in item.as_object().into_iter().flatten() {
                if operation["tags"][0] == name {
                    one(out, &method.to_uppercase(), path, operation)?;
                }
            }
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
    writeln!(out)
}

/// A body's type and, where it has one, its schema.
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
        if let Some(fields) = schema["properties"].as_object() {
            writeln!(out, "| field | type | |\n|---|---|---|")?;
            for (field, about) in fields {
                let what = about["description"].as_str().unwrap_or_default();
                writeln!(out, "| `{field}` | {} | {what} |", kind_of(about))?;
            }
        }
    }
    Ok(())
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
