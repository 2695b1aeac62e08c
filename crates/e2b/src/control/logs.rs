//! The events of a sandbox in the form of E2B's logs, one line each.

use axum::extract::State;
use saggar_api::{SandboxEvent, SandboxEventBody};
use saggar_domain::net::Verdict;
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Read};
use saggar_http::extract::Query;
use saggar_http::live::PAGE_MAX;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::state::Shared;

/// Default and maximum number of lines.
const LINES_DEFAULT: usize = 1000;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    start: Option<u64>,
    limit: Option<usize>,
    cursor: Option<u64>,
    direction: Option<String>,
    level: Option<String>,
    search: Option<String>,
}

impl Asked {
    fn limit(&self) -> usize {
        self.limit.unwrap_or(LINES_DEFAULT).min(LINES_DEFAULT)
    }
}

/// For older clients: lines, and the same structured.
pub(super) async fn logs(
    allowed: Allowed<Read>,
    State(server): State<Shared>,
    Query(asked): Query<Asked>,
) -> Result<axum::Json<Value>, Refusal> {
    let events = events(&allowed, &server).await?;
    let events = events.iter().filter(|event| asked.start.is_none_or(|start| event.at.as_millis() >= start));
    let entries: Vec<Value> = events.take(asked.limit()).map(entry).collect();
    let lines: Vec<Value> =
        entries.iter().map(|entry| json!({ "timestamp": entry["timestamp"], "line": entry["message"] })).collect();
    Ok(axum::Json(json!({ "logs": lines, "logEntries": entries })))
}

/// For current clients.
pub(super) async fn logs_again(
    allowed: Allowed<Read>,
    State(server): State<Shared>,
    Query(asked): Query<Asked>,
) -> Result<axum::Json<Value>, Refusal> {
    let is_backward = match asked.direction.as_deref() {
        None | Some("forward") => false,
        Some("backward") => true,
        Some(_) => return Err(Refusal::invalid("direction is neither forward nor backward", "choose one")),
    };
    let events = events(&allowed, &server).await?;
    let is_wanted = |event: &&SandboxEvent| {
        let at = event.at.as_millis();
        asked.cursor.is_none_or(|cursor| if is_backward { at <= cursor } else { at >= cursor })
    };
    let mut entries: Vec<Value> = events.iter().filter(is_wanted).map(entry).collect();
    entries.retain(|entry| {
        let message = entry["message"].as_str().unwrap_or_default();
        asked.search.as_deref().is_none_or(|search| message.contains(search))
            && asked
                .level
                .as_deref()
                .is_none_or(|level| rank(entry["level"].as_str().unwrap_or_default()) >= rank(level))
    });
    if is_backward {
        entries.reverse();
    }
    entries.truncate(asked.limit());
    Ok(axum::Json(json!({ "logs": entries })))
}

async fn events(allowed: &Allowed<Read>, server: &Shared) -> Result<Vec<SandboxEvent>, Refusal> {
    let events = server.events_page(&allowed.permit, None, Some(PAGE_MAX)).await?.items;
    Ok(events)
}

fn entry(event: &SandboxEvent) -> Value {
    let body = serde_json::to_value(&event.body).unwrap_or_default();
    let fields: Map<String, Value> =
        body.as_object().into_iter().flatten().map(|(name, value)| (name.clone(), text(value))).collect();
    let is_warning = match &event.body {
        SandboxEventBody::Denied { .. } | SandboxEventBody::LimitReached { .. } | SandboxEventBody::NetworkLost => true,
        SandboxEventBody::Decision { decision } => decision.verdict == Verdict::Denied,
        _ => false,
    };
    let level = if is_warning { "warn" } else { "info" };
    json!({ "timestamp": event.at, "message": event.body.name(), "level": level, "fields": fields })
}

/// Fields are strings in E2B's API.
fn text(value: &Value) -> Value {
    match value {
        Value::String(_) => value.clone(),
        other => json!(other.to_string()),
    }
}

fn rank(level: &str) -> u8 {
    match level {
        "debug" => 0,
        "info" => 1,
        "warn" => 2,
        _ => 3,
    }
}
