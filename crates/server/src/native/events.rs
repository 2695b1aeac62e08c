//! Events of a sandbox: as a list, as a stream, as text.

use std::collections::VecDeque;
use std::fmt::Write;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use http::header::ACCEPT;
use saggar_api::{Code, EventList, EventsQuery, SSE_MEDIA_TYPE, SandboxEvent, ServerSentEvent, route};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Read};
use saggar_http::extract::Query;
use saggar_http::live::{PAGE_MAX, page_limit};
use saggar_http::sse::{self, Source};
use saggar_http::wire;
use saggar_runtime::Permit;

use super::resource::resource;
use crate::server::Shared;

resource! {
    bounded {
        route::LOGS => get logs;
    }
    streaming {
        route::EVENTS => get read;
    }
}

/// Maximum output of each stream of an exec in the logs.
const LOG_TAIL_MAX: usize = 4096;
/// Maximum number of execs with output in the logs.
const LOG_EXECS_MAX: usize = 20;

/// Read or follow a sandbox's events
///
/// With `Accept: text/event-stream` the response follows the events until the sandbox has ended, starting after
/// `Last-Event-ID`.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/events", tag = "sandboxes", operation_id = "readEvents",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        EventsQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "Number of the last event that was read; takes precedence over `after`"),
    ),
    responses((status = 200, description = "Events, oldest first", content(
        (EventList = "application/json"),
        (SandboxEvent = "text/event-stream"),
    ))),
)]
pub(crate) async fn read(
    allowed: Allowed<Read>,
    State(server): State<Shared>,
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
) -> Result<Response, Refusal> {
    let after = last_event(&headers)?.or(query.after);
    page_limit(query.limit)?;
    if wants_stream(&headers) {
        // Checks the project before the stream begins.
        server.sandboxes.get(&allowed.permit).await?;
        let source = Following {
            server: server.clone(),
            permit: allowed.permit,
            after: after.unwrap_or(0),
            ready: VecDeque::new(),
            is_over: false,
        };
        return Ok(sse::answer(server.gate.clone(), source));
    }
    let page = server.events_page(&allowed.permit, after, query.limit).await?;
    Ok(axum::Json(EventList { items: page.items, last_seq: page.newest }).into_response())
}

/// Whether a client requests an event stream.
pub(super) fn wants_stream(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts
        .flat_map(|value| value.split(','))
        .any(|kind| kind.split(';').next().unwrap_or(kind).trim().eq_ignore_ascii_case(SSE_MEDIA_TYPE))
}

pub(super) fn last_event(headers: &HeaderMap) -> Result<Option<u64>, Refusal> {
    let Some(value) = headers.get(route::header::LAST_EVENT_ID) else { return Ok(None) };
    let text = value.to_str().unwrap_or("?");
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(seq) if is_number => Ok(Some(seq)),
        _ => Err(Refusal::invalid(
            "the Last-Event-ID is not the number of an event",
            "send the id of the last event, or leave it out",
        )),
    }
}

/// The events as they are stored.
struct Following {
    server: Shared,
    permit: Permit,
    after: u64,
    ready: VecDeque<SandboxEvent>,
    is_over: bool,
}

impl Source for Following {
    async fn next(&mut self) -> Option<ServerSentEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(sse::json(event.seq.to_string(), event.body.name(), &event));
            }
            let page = self.server.events_page(&self.permit, Some(self.after), None).await.ok()?;
            let is_more = page.through > self.after;
            self.after = self.after.max(page.through);
            self.ready.extend(page.items);
            if is_more {
                continue;
            }
            if self.is_over {
                return None;
            }
            match self.server.sandboxes.next_event(&self.permit, self.after).await {
                Ok(true) => {}
                // Read once more: its last words are stored by now.
                Ok(false) => self.is_over = true,
                Err(_) => return None,
            }
        }
    }
}

/// Read a sandbox's events as text, with the end of its execs' output
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/logs", tag = "sandboxes", operation_id = "readLogs",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    responses((status = 200, description = "Lines of text", body = String, content_type = "text/plain")),
)]
pub(crate) async fn logs(allowed: Allowed<Read>, State(server): State<Shared>) -> Result<String, Refusal> {
    let events = server.events_page(&allowed.permit, None, Some(PAGE_MAX)).await?.items;
    let mut text = String::new();
    for event in events {
        let about = serde_json::to_value(&event.body).unwrap_or_default();
        let fields = about.as_object().into_iter().flatten().filter(|(name, _)| *name != "type");
        let fields: String = fields.map(|(name, value)| format!(" {name}={value}")).collect();
        // Writing to a string can't fail.
        let _ = writeln!(text, "{} {}{fields}", event.at, event.body.name());
    }
    for view in server.sandboxes.execs(&allowed.permit).await?.into_iter().take(LOG_EXECS_MAX) {
        let id = match &view {
            saggar_runtime::ExecView::Live(finished) => finished.exec.exec_id.clone(),
            saggar_runtime::ExecView::Stored(stored) => stored.exec.asked.id.clone(),
        };
        let Ok(view) = server.sandboxes.exec(&allowed.permit, &id).await else { continue };
        let result = wire::exec_view(&sandbox_of(&allowed.permit)?, view);
        for (name, bytes) in [("stdout", &result.output.stdout), ("stderr", &result.output.stderr)] {
            let tail = &bytes[bytes.len().saturating_sub(LOG_TAIL_MAX)..];
            for line in String::from_utf8_lossy(tail).lines() {
                // Writing to a string can't fail. Control characters are escaped, because this is for terminals.
                let _ = writeln!(text, "{id} {name}: {}", visible(line));
            }
        }
    }
    Ok(text)
}

fn visible(line: &str) -> String {
    line.chars()
        .flat_map(|c| if c.is_control() && c != '\t' { c.escape_default().collect() } else { vec![c] })
        .collect()
}

/// The sandbox of a permit.
pub(super) fn sandbox_of(permit: &Permit) -> Result<saggar_domain::SandboxId, Refusal> {
    permit.action().sandbox().cloned().ok_or_else(|| Refusal::new(Code::Internal, "no sandbox is named", ""))
}
