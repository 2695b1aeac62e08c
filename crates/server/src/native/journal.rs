//! The journal of a run: read, follow, replay, export.

use std::collections::VecDeque;
use std::pin::Pin;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderMap;
use saggar_api::{JournalPage, JournalQuery, ReplayReport, ServerSentEvent, route};
use saggar_http::Refusal;
use saggar_http::access::{OnRun, ReadRun};
use saggar_http::extract::Query;
use saggar_http::sse::{self, Source};
use saggar_runtime::runs::{Fixture, Listener, Said};
use saggar_runtime::{Fault, Permit};
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
        let source = Following {
            server: server.clone(),
            permit: allowed.permit,
            after,
            ready,
            listener,
            growing: Pending::default(),
        };
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
    /// Goes on while pieces of a reply are passed on: each piece would cost a read of the run's row otherwise.
    growing: Pending<Result<bool, Fault>>,
}

impl Source for Following {
    async fn next(&mut self) -> Option<ServerSentEvent> {
        while self.ready.is_empty() {
            let grow = || {
                let (server, permit, after) = (self.server.clone(), self.permit.clone(), self.after);
                async move { server.runs.next_entry(&permit, after).await }
            };
            let grown = match self.growing.or(heard(&mut self.listener), grow).await {
                Either::First(said) => {
                    // It isn't resumed after it: the last entry is where to go on.
                    let data = serde_json::to_string(&wire::said(said)).unwrap_or_default();
                    return Some(ServerSentEvent { id: String::new(), event: "said".to_owned(), data });
                }
                Either::Awaited(grown) => grown,
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

/// A wait that goes on when something else comes first.
struct Pending<T>(Option<Pin<Box<dyn Future<Output = T> + Send>>>);

enum Either<F, T> {
    First(F),
    Awaited(T),
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Pending<T> {
    /// What comes first. The wait is begun unless an earlier one goes on.
    async fn or<F, W>(&mut self, first: impl Future<Output = F>, begin: impl FnOnce() -> W) -> Either<F, T>
    where
        W: Future<Output = T> + Send + 'static,
    {
        let wait = self.0.get_or_insert_with(|| Box::pin(begin()));
        tokio::select! {
            biased;
            first = first => Either::First(first),
            awaited = wait => {
                self.0 = None;
                Either::Awaited(awaited)
            }
        }
    }
}

async fn heard(listener: &mut Option<Listener>) -> Said {
    match listener {
        Some(listener) => listener.next().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::{pending, ready};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_wait_is_begun_once_and_goes_on_across_what_comes_first() {
        let begun = Cell::new(0);
        let (end, ended) = oneshot::channel::<u8>();
        let mut ended = Some(ended);
        let mut begin = || {
            begun.set(begun.get() + 1);
            let ended = ended.take();
            async move { ended.expect("it is begun once").await }
        };
        let mut waiting = Pending::default();
        for _ in 0..3 {
            assert!(matches!(waiting.or(ready(()), &mut begin).await, Either::First(())));
        }
        end.send(7).unwrap();
        assert!(matches!(waiting.or(pending::<()>(), &mut begin).await, Either::Awaited(Ok(7))));
        assert_eq!(begun.get(), 1);
    }
}
