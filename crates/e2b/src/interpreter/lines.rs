//! The events of an execution as E2B's clients read them: a line of JSON for each.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use saggar_domain::OutputStream;
use saggar_runtime::{CodeEvent, CodeResult, Running};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::state::Shared;

/// Maximum silence of a stream.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A result, with a field for every format that clients know.
#[derive(Serialize)]
struct Shown {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    known: BTreeMap<&'static str, Box<RawValue>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra: BTreeMap<String, Box<RawValue>>,
    is_main_result: bool,
}

/// The response that streams them. If it isn't read to its end, the code is interrupted.
pub(super) fn answer(server: Shared, running: Running) -> Response {
    let pieces = stream::unfold(Some((server, running)), |state| async move {
        let (server, mut running) = state?;
        let line = tokio::select! {
            event = running.next() => match event {
                Some(CodeEvent::Ended { count, .. }) => {
                    // A process that died has no count; clients take any number.
                    let line = line(&json!({ "type": "number_of_executions", "execution_count": count.unwrap_or(0) }));
                    return Some((Ok(line), None));
                }
                // Clients then find out whether the sandbox still runs.
                None | Some(CodeEvent::Failed(_)) => return Some((Err(io::ErrorKind::ConnectionReset.into()), None)),
                Some(CodeEvent::Output { stream, text }) => printed(stream, &text),
                Some(CodeEvent::Result(result)) => line(&shown(result)),
                Some(CodeEvent::Error(error)) => line(&json!({
                    "type": "error", "name": error.name, "value": error.value, "traceback": error.traceback,
                })),
            },
            () = tokio::time::sleep(KEEP_ALIVE) => line(&json!({ "type": "keepalive" })),
            () = server.stops() => return Some((Err(io::ErrorKind::ConnectionReset.into()), None)),
        };
        Some((Ok::<_, io::Error>(line), Some((server, running))))
    });
    let mut response = Body::from_stream(pieces).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn printed(stream: OutputStream, text: &str) -> Bytes {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    line(&json!({ "type": stream.to_string(), "text": text, "timestamp": now.as_nanos() as u64 }))
}

fn shown(result: CodeResult) -> Shown {
    let mut shown =
        Shown { kind: "result", known: BTreeMap::new(), extra: BTreeMap::new(), is_main_result: result.is_main };
    for (kind, value) in result.formats {
        match field(&kind) {
            Some(field) => drop(shown.known.insert(field, value)),
            None => drop(shown.extra.insert(kind, value)),
        }
    }
    shown
}

/// The field of a media type; `None` for others than clients know.
fn field(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "text/plain" => "text",
        "text/html" => "html",
        "text/markdown" => "markdown",
        "image/svg+xml" => "svg",
        "image/png" => "png",
        "image/jpeg" => "jpeg",
        "application/pdf" => "pdf",
        "text/latex" => "latex",
        "application/json" => "json",
        "application/javascript" => "javascript",
        "e2b/data" => "data",
        "e2b/chart" => "chart",
        _ => return None,
    })
}

fn line(value: &impl Serialize) -> Bytes {
    let mut text = serde_json::to_vec(value).unwrap_or_else(|_| Value::Null.to_string().into_bytes());
    text.push(b'\n');
    text.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_a_field_for_each_format_and_the_rest_is_extra() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let formats = [("text/plain", r#""1""#), ("e2b/data", r#"{"a":[1]}"#), ("x/y", "2")];
        let formats = formats.into_iter().map(|(kind, text)| (kind.to_owned(), raw(text))).collect();
        let told = line(&shown(CodeResult { is_main: true, formats }));
        assert_eq!(
            serde_json::from_slice::<Value>(&told).unwrap(),
            json!({"type": "result", "text": "1", "data": {"a": [1]}, "extra": {"x/y": 2}, "is_main_result": true})
        );
    }
}
