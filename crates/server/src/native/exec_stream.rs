//! The stream of an exec as server-sent events, resumable at any byte.

use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use saggar_api::{Beginning, Bytes, ExecEvent, Offsets, OutputStream, ServerSentEvent, StreamQuery, route};
use saggar_domain::{SandboxId, User};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Exec, Read};
use saggar_http::extract::{PathExec, Query};
use saggar_http::sse::{self, Source};
use saggar_http::wire;
use saggar_runtime::{ExecView, Fault, Feeding, Followed, Following, Message, Permit};
use saggar_supervisor::control::Reply;

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
/// Each event's id says how far both streams have been read, so `Last-Event-ID` goes on exactly there. An exec of an ended sandbox gives
/// what is kept of it.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/execs/{exec}/stream", tag = "execs", operation_id = "followExec",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        ("exec" = saggar_api::schema::ExecId, Path, description = "The exec"),
        StreamQuery,
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last event that was read; wins over `from`"),
    ),
    responses((status = 200, description = "What it prints, as it prints it", body = ExecEvent, content_type = "text/event-stream")),
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
            let help = "send the id of the last event, such as 12-0, or none";
            Beginning::Offsets(offsets.map_err(|complaint| Refusal::invalid(complaint, help))?)
        }
    };
    let id = sandbox_of(&allowed.permit)?;
    match server.sandboxes.attach(&allowed.permit, &exec, wire::beginning(from), false).await {
        Ok(followed) => {
            let at = begins_at(from, &followed);
            Ok(answer(server, id, followed, None, at))
        }
        // What is stored can still be read.
        Err(fault @ (Fault::Ended { .. } | Fault::NotFound { what: "exec", .. })) => {
            stored(server, &readable.permit, &id, &exec, from).await.unwrap_or_else(|| Err(fault.into()))
        }
        Err(fault) => Err(fault.into()),
    }
}

/// How far both streams have been read when the first byte comes.
fn begins_at(from: Beginning, followed: &Followed) -> Offsets {
    let state = &followed.state;
    match from {
        Beginning::Start => Offsets { stdout: state.stdout_dropped, stderr: state.stderr_dropped },
        Beginning::Now => Offsets { stdout: state.stdout_bytes, stderr: state.stderr_bytes },
        Beginning::Offsets(offsets) => offsets,
    }
}

/// Follows, beginning at these offsets.
pub(super) fn answer(server: Shared, id: SandboxId, followed: Followed, user: Option<User>, at: Offsets) -> Response {
    let Followed { state, following, feeding } = followed;
    let started = ExecEvent::Started { exec_id: state.exec_id.clone(), pid: Some(state.pid) };
    let source = Stream { id, user, following, _feeding: feeding, at, started: Some(started), is_over: false };
    sse::answer(server.gate.clone(), source)
}

struct Stream {
    id: SandboxId,
    user: Option<User>,
    following: Following,
    // Half of the connection: dropped, the other half would end.
    _feeding: Feeding,
    at: Offsets,
    started: Option<ExecEvent>,
    is_over: bool,
}

impl Source for Stream {
    async fn next(&mut self) -> Option<ServerSentEvent> {
        if self.is_over {
            return None;
        }
        let event = match self.started.take() {
            Some(started) => started,
            None => self.receive().await,
        };
        self.is_over = matches!(event, ExecEvent::Exited { .. } | ExecEvent::Failed { .. });
        self.at = self.at.after(&event);
        Some(sse::json(self.at.to_string(), event.name(), &event))
    }
}

impl Stream {
    async fn receive(&mut self) -> ExecEvent {
        loop {
            match self.following.next().await {
                Ok(Some(Message::Output { stream, offset, bytes })) => {
                    // The place is the supervisor's to say.
                    match wire::output_stream(stream) {
                        OutputStream::Stdout => self.at.stdout = offset,
                        OutputStream::Stderr => self.at.stderr = offset,
                    }
                    let bytes = Bytes(bytes);
                    return match wire::output_stream(stream) {
                        OutputStream::Stdout => ExecEvent::Stdout { bytes },
                        OutputStream::Stderr => ExecEvent::Stderr { bytes },
                    };
                }
                Ok(Some(Message::Reply(Reply::Gap { stream, bytes }))) => {
                    return ExecEvent::Gap { stream: wire::output_stream(stream), bytes };
                }
                Ok(Some(Message::Reply(Reply::Exited(state)))) => {
                    return ExecEvent::Exited { exec: Box::new(wire::exec(&self.id, &state, self.user)) };
                }
                Ok(Some(Message::Reply(Reply::Error(problem)))) => {
                    return ExecEvent::Failed { problem: problem.into() };
                }
                Ok(Some(Message::Reply(_))) => {}
                Ok(None) | Err(_) => {
                    let refusal = Refusal::from(Fault::Ended { id: self.id.clone(), reason: None });
                    return ExecEvent::Failed { problem: *refusal.0 };
                }
            }
        }
    }
}

/// The stream of an exec that only the store knows; `None` when it doesn't either.
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
        self.at = self.at.after(&event);
        Some(sse::json(self.at.to_string(), event.name(), &event))
    }
}
