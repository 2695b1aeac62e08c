//! The schemas are self-contained: every reference resolves, and unknown fields of requests are rejected there too.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

use saggar_api as api;
use serde_json::Value;
use utoipa::OpenApi;

#[derive(OpenApi)]
#[openapi(components(schemas(
    api::AttachReply,
    api::AttachRequest,
    api::CreateKey,
    api::CreateSandbox,
    api::CreatedKey,
    api::CreatedSandbox,
    api::EventList,
    api::ExecEvent,
    api::ExecList,
    api::ExecResult,
    api::FileEvent,
    api::FileList,
    api::Health,
    api::KeyList,
    api::MakeDirectory,
    api::Metadata,
    api::Metrics,
    api::MoveFile,
    api::Problem,
    api::PauseSandbox,
    api::ResumeSandbox,
    api::SandboxList,
    api::SetTimeout,
    api::SignFile,
    api::SignalExec,
    api::SignedUrl,
    api::StartExec,
    api::TreeReport,
    api::UpdateSandbox,
    api::WriteReport,
)))]
struct Document;

fn schemas() -> Value {
    serde_json::to_value(Document::openapi()).unwrap()["components"]["schemas"].clone()
}

fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(target) if name == "$ref" => found.push(target),
                    field => references(field, found),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_reference_leads_to_a_schema() {
    let schemas = schemas();
    let mut found = Vec::new();
    references(&schemas, &mut found);
    assert!(!found.is_empty());
    for target in found {
        let name = target.strip_prefix("#/components/schemas/").unwrap();
        assert!(schemas.get(name).is_some(), "{target} leads nowhere");
    }
}

#[test]
fn requests_say_that_unknown_fields_are_refused() {
    let schemas = schemas();
    for name in ["CreateSandbox", "SandboxLimits", "Ports", "StartExec", "SignalExec", "MoveFile", "CreateKey"] {
        assert_eq!(schemas[name]["additionalProperties"], false, "{name}");
    }
    assert_eq!(schemas["Sandbox"].get("additionalProperties"), None);
}

#[test]
fn choices_are_those_of_the_domain() {
    let schemas = schemas();
    assert_eq!(schemas["Network"]["enum"], serde_json::json!(["none", "proxied", "host"]));
    assert_eq!(schemas["ProblemCode"]["enum"].as_array().unwrap().len(), api::Code::ALL.len());
}
