//! The journal of a run: read, follow, replay, export.

use std::collections::VecDeque;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use saggar_api::{JournalPage, JournalQuery, ReplayReport, ServerSentEvent, route};
use saggar_http::Refusal;
use saggar_http::access::{OnRun, ReadRun};
use saggar_http::extract::Query;
use saggar_http::sse::{self, Source};
use saggar_runtime::Permit;
use saggar_runtime::runs::{Fixture, Listener, Said};
use saggar_store::JournalEntry;

use super::events::{last_event, wants_stream};
use super::resource::resource;
use super::wire_run as wire;
use crate::server::Shared;

resource! {
    bounded {
        route::RUN_REPLAY => get replay;
        route::RUN_EXPORT => get export;
    }
    streaming {
        route::RUN_JOURNAL => get read;
    }
}

/// Read or follow a run's journal
///
/// With `Accept: text/event-stream` the response follows the journal until the run is over, starting after
/// `Last-Event-ID`.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/journal", tag = "runs", operation_id = "readJournal",
    params(
        ("id" = saggar_api::schema::RunId, Path, description = "The run"),
        JournalQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "Number of the last entry that was read; takes precedence over `after`"),
    ),
    responses((status = 200, description = "At most a thousand entries, oldest first", content(
        (JournalPage = "application/json"),
        (serde_json::Value = "text/event-stream"),
    ))),
)]
pub(crate) async fn read(
    allowed: OnRun<ReadRun>,
    State(server): State<Shared>,
    headers: HeaderMap,
    Query(query): Query<JournalQuery>,
) -> Result<Response, Refusal> {
    let after = last_event(&headers)?.or(query.after).unwrap_or(0);
    if wants_stream(&headers) {
        // Ownership and readability are checked before the stream begins.
        let ready = server.runs.journal(&allowed.permit, after).await?.into();
        let is_live = query.live.unwrap_or(false);
        let listener = if is_live { Some(server.runs.listen(&allowed.permit)?) } else { None };
        let source = Following { server: server.clone(), permit: allowed.permit, after, ready, listener };
        return Ok(sse::answer(server.gate.clone(), source));
    }
    let page = server.runs.journal(&allowed.permit, after).await?;
    let last_seq = page.last().map_or(after, |entry| entry.seq);
    let items = page.iter().map(|entry| serde_json::from_str(&entry.entry)).collect::<Result<_, _>>();
    let items = items.map_err(|_| Refusal::internal())?;
    Ok(axum::Json(JournalPage { items, last_seq }).into_response())
}

/// Replay a run from its journal
///
/// Nothing is executed. The response shows the first difference between the recorded events and those decided now.
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/replay", tag = "runs", operation_id = "replayRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    responses((status = 200, description = "What was found", body = ReplayReport)),
)]
pub(crate) async fn replay(
    allowed: OnRun<ReadRun>,
    State(server): State<Shared>,
) -> Result<axum::Json<ReplayReport>, Refusal> {
    Ok(axum::Json(wire::replay(server.runs.replay(&allowed.permit).await?)))
}

/// Export a run as a fixture for `saggar test`
#[utoipa::path(
    get, path = "/api/v1/runs/{id}/export", tag = "runs", operation_id = "exportRun",
    params(("id" = saggar_api::schema::RunId, Path, description = "The run")),
    responses((status = 200, description = "All its entries and bodies", body = serde_json::Value)),
)]
pub(crate) async fn export(
    allowed: OnRun<ReadRun>,
    State(server): State<Shared>,
) -> Result<axum::Json<Fixture>, Refusal> {
    Ok(axum::Json(server.runs.export(&allowed.permit).await?))
}

/// The entries as they are appended.
struct Following {
    server: Shared,
    permit: Permit,
    after: u64,
    ready: VecDeque<JournalEntry>,
    /// For what its model says meanwhile.
    listener: Option<Listener>,
}

impl Source for Following {
    async fn next(&mut self) -> Option<ServerSentEvent> {
        while self.ready.is_empty() {
            let grown = tokio::select! {
                biased;
                said = heard(&mut self.listener) => {
                    // It isn't resumed after it: the last entry is where to go on.
                    let data = serde_json::to_string(&wire::said(said)).unwrap_or_default();
                    return Some(ServerSentEvent { id: String::new(), event: "said".to_owned(), data });
                }
                grown = self.server.runs.next_entry(&self.permit, self.after) => grown,
            };
            match grown {
                Ok(true) => {}
                Ok(false) => return None,
                Err(fault) => {
                    tracing::warn!(error = %fault, "following a journal failed");
                    return None;
                }
            }
            match self.server.runs.journal(&self.permit, self.after).await {
                Ok(page) => self.ready.extend(page),
                Err(fault) => {
                    tracing::warn!(error = %fault, "following a journal failed");
                    return None;
                }
            }
        }
        let entry = self.ready.pop_front()?;
        self.after = entry.seq;
        Some(ServerSentEvent { id: entry.seq.to_string(), event: "entry".to_owned(), data: entry.entry })
    }
}

async fn heard(listener: &mut Option<Listener>) -> Said {
    match listener {
        Some(listener) => listener.next().await,
        None => std::future::pending().await,
    }
}
