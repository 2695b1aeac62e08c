//! The stream of an exec as server-sent events, resumable at any byte.

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use saggar_api::{Bytes, ExecEvent, ServerSentEvent, StreamQuery, route};
use saggar_domain::{Beginning, Offsets, SandboxId, User};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Exec, Read};
use saggar_http::extract::{PathExec, Query};
use saggar_http::sse::{self, Source};
use saggar_http::wire;
use saggar_runtime::{ExecView, Fault, Followed, Following, Permit};

use super::events::sandbox_of;
use super::resource::resource;
use crate::server::Shared;

resource! {
    streaming {
        route::EXEC_STREAM => get follow;
    }
}

/// Follow an exec
///
/// Each event's id has the offsets in both streams, so `Last-Event-ID` resumes exactly there. For an exec of an ended
/// sandbox, the stream has the kept output.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/execs/{exec}/stream", tag = "execs", operation_id = "followExec",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        ("exec" = saggar_api::schema::ExecId, Path, description = "The exec"),
        StreamQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was read; takes precedence over `from`"),
    ),
    responses((status = 200, description = "The exec's output as it comes", body = ExecEvent, content_type = "text/event-stream")),
)]
pub(crate) async fn follow(
    allowed: Allowed<Exec>,
    readable: Allowed<Read>,
    State(server): State<Shared>,
    PathExec(exec): PathExec,
    headers: HeaderMap,
    Query(query): Query<StreamQuery>,
) -> Result<Response, Refusal> {
    let from = match headers.get(route::header::LAST_EVENT_ID) {
        None => query.from,
        Some(value) => {
            let offsets =
                value.to_str().map_err(|_| "the Last-Event-ID is not text".to_owned()).and_then(Offsets::parse);
            let help = "send the id of the last event, such as 12-0, or leave it out";
            Beginning::Offsets(offsets.map_err(|complaint| Refusal::invalid(complaint, help))?)
        }
    };
    let id = sandbox_of(&allowed.permit)?;
    match server.sandboxes.attach(&allowed.permit, &exec, from, false).await {
        Ok(followed) => Ok(answer(server, id, followed, None)),
        // Stored output can still be read.
        Err(fault @ (Fault::Ended { .. } | Fault::NotFound { what: "exec", .. })) => {
            stored(server, &readable.permit, &id, &exec, from).await.unwrap_or_else(|| Err(fault.into()))
        }
        Err(fault) => Err(fault.into()),
    }
}

/// Follows, and begins by saying so.
pub(super) fn answer(server: Shared, id: SandboxId, followed: Followed, user: Option<User>) -> Response {
    let started = ExecEvent::Started { exec_id: followed.exec.exec_id.clone(), pid: Some(followed.exec.pid) };
    let source = Stream { id, user, following: followed.into_following(), started: Some(started) };
    sse::answer(server.gate.clone(), source)
}

struct Stream {
    id: SandboxId,
    user: Option<User>,
    following: Following,
    started: Option<ExecEvent>,
}

impl Source for Stream {
    async fn next(&mut self) -> Option<ServerSentEvent> {
        let event = match self.started.take() {
            Some(started) => started,
            None => wire::exec_event(&self.id, self.following.next().await?, self.user),
        };
        Some(sse::json(self.following.place().to_string(), event.name(), &event))
    }
}

/// The stream of an exec that only the store knows; `None` if it is unknown there too.
async fn stored(
    server: Shared,
    permit: &Permit,
    id: &SandboxId,
    exec: &saggar_domain::ExecId,
    from: Beginning,
) -> Option<Result<Response, Refusal>> {
    let view = server.sandboxes.exec(permit, exec).await.ok()?;
    if let ExecView::Live(_) = view {
        return None;
    }
    let result = wire::exec_view(id, view);
    let output = result.output;
    let skip = |bytes: Vec<u8>, dropped: u64, read: u64| {
        bytes[(read.saturating_sub(dropped) as usize).min(bytes.len())..].to_vec()
    };
    let at = match from {
        Beginning::Start => Offsets { stdout: output.stdout_dropped, stderr: output.stderr_dropped },
        Beginning::Now => Offsets { stdout: u64::MAX, stderr: u64::MAX },
        Beginning::Offsets(offsets) => offsets,
    };
    let stdout = skip(output.stdout, output.stdout_dropped, at.stdout);
    let stderr = skip(output.stderr, output.stderr_dropped, at.stderr);
    let mut events = vec![ExecEvent::Started { exec_id: exec.clone(), pid: None }];
    events.extend((!stdout.is_empty()).then_some(ExecEvent::Stdout { bytes: Bytes(stdout) }));
    events.extend((!stderr.is_empty()).then_some(ExecEvent::Stderr { bytes: Bytes(stderr) }));
    events.push(ExecEvent::Exited { exec: Box::new(result.exec) });
    let source = Kept { events: events.into_iter(), at: if from == Beginning::Now { Offsets::default() } else { at } };
    Some(Ok(sse::answer(server.gate.clone(), source)))
}

struct Kept {
    events: std::vec::IntoIter<ExecEvent>,
    at: Offsets,
}

impl Source for Kept {
    async fn next(&mut self) -> Option<ServerSentEvent> {
        let event = self.events.next()?;
        self.at = event.place_after(self.at);
        Some(sse::json(self.at.to_string(), event.name(), &event))
    }
}
