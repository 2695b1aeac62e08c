//! A WebSocket to an exec: both streams out, stdin in, signals and sizes on the side.

use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message as Frame, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::{BufMut, BytesMut};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::HeaderMap;
use http::header::{HOST, ORIGIN};
use saggar_api::{ATTACH_MESSAGE_BYTES_MAX, AttachQuery, AttachReply, AttachRequest, Code, output_prefix, route};
use saggar_domain::{ExecId, SandboxId};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Exec};
use saggar_http::context;
use saggar_http::extract::{PathExec, Query};
use saggar_http::wire;
use saggar_runtime::{Fault, Feeding, Followed, Following, Message};
use saggar_supervisor::control::{Op, Reply};

use super::events::sandbox_of;
use super::resource::resource;
use crate::server::{Server, Shared};

resource! {
    streaming {
        route::EXEC_ATTACH => get attach;
    }
}

/// How often a silent client is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(20);
/// What may wait to be sent before the program is held up.
const WRITE_BUFFER_MAX: usize = 2 * ATTACH_MESSAGE_BYTES_MAX;

/// Attach to an exec over a WebSocket
///
/// Binary messages from the client are stdin; those from the server are one byte (1 stdout, 2 stderr) and output. Text messages are JSON:
/// `AttachRequest` from the client, `AttachReply` from the server.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/execs/{exec}/attach", tag = "execs", operation_id = "attachExec",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        ("exec" = saggar_api::schema::ExecId, Path, description = "The exec"),
        AttachQuery,
    ),
    responses(
        (status = 101, description = "A WebSocket from here on", body = AttachReply),
        (status = 426, description = "The request does not ask for a WebSocket"),
    ),
)]
pub(crate) async fn attach(
    allowed: Allowed<Exec>,
    State(server): State<Shared>,
    PathExec(exec): PathExec,
    Query(query): Query<AttachQuery>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, axum::extract::ws::rejection::WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    check_origin(&server, &headers)?;
    let upgrade = upgrade.map_err(|_| {
        Refusal::invalid("this address speaks WebSocket only", "ask for an upgrade to `websocket`, over HTTP/1.1")
    })?;
    let id = sandbox_of(&allowed.permit)?;
    let from = wire::beginning(query.from);
    let followed = match server.feed(&allowed.permit, &exec, from).await {
        // One that reads nothing can still be followed.
        Err(refusal) if refusal.0.code == Code::ExecEnded => {
            server.sandboxes.attach(&allowed.permit, &exec, from, false).await?
        }
        other => other?,
    };
    let upgrade = upgrade
        .max_message_size(ATTACH_MESSAGE_BYTES_MAX)
        .max_frame_size(ATTACH_MESSAGE_BYTES_MAX)
        .max_write_buffer_size(WRITE_BUFFER_MAX);
    let held = context::hold();
    Ok(upgrade.on_upgrade(move |socket| async move {
        let _held = held;
        converse(server, id, followed, socket).await;
    }))
}

/// A browser says which page asks; only our own, and those the operator named, may.
pub(crate) fn check_origin(server: &Server, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(origin) = headers.get(ORIGIN) else { return Ok(()) };
    let origin = origin.to_str().unwrap_or_default().to_ascii_lowercase();
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default().to_ascii_lowercase();
    let name = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
    if (name.is_some() && name == Some(host.as_str())) || server.origins.iter().any(|named| named.as_str() == origin) {
        return Ok(());
    }
    Err(Refusal::new(
        Code::Forbidden,
        "a page of another origin may not open a WebSocket here",
        "name the page's origin in the setting `origins`",
    ))
}

async fn converse(server: Shared, id: SandboxId, followed: Followed, socket: WebSocket) {
    let Followed { state, following, feeding } = followed;
    let (mut sink, stream) = socket.split();
    let started = AttachReply::Started { exec_id: state.exec_id.clone(), pid: Some(state.pid) };
    if send(&mut sink, &started).await.is_err() {
        return;
    }
    // Each direction goes on while the other waits. The client's end is the end; the program's is told first.
    tokio::select! {
        () = outwards(&id, following, &mut sink) => {}
        () = inwards(&state.exec_id, stream, feeding) => {}
        () = server.stops() => {}
    }
    let close = CloseFrame { code: close_code::NORMAL, reason: Utf8Bytes::from_static("") };
    // The client may be gone, which is the other way for this to end.
    let _ = tokio::time::timeout(PING_EVERY, sink.send(Frame::Close(Some(close)))).await;
}

async fn outwards(id: &SandboxId, mut following: Following, sink: &mut SplitSink<WebSocket, Frame>) {
    loop {
        let message = match tokio::time::timeout(PING_EVERY, following.next()).await {
            Ok(message) => message,
            Err(_) => match sink.send(Frame::Ping(bytes::Bytes::new())).await {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        let reply = match message {
            Ok(Some(Message::Output { stream, bytes, .. })) => {
                let mut frame = BytesMut::with_capacity(bytes.len() + 1);
                frame.put_u8(output_prefix(wire::output_stream(stream)));
                frame.extend_from_slice(&bytes);
                match sink.send(Frame::Binary(frame.freeze())).await {
                    Ok(()) => continue,
                    Err(_) => return,
                }
            }
            Ok(Some(Message::Reply(Reply::Gap { stream, bytes }))) => {
                AttachReply::Gap { stream: wire::output_stream(stream), bytes }
            }
            Ok(Some(Message::Reply(Reply::Exited(state)))) => {
                AttachReply::Exited { exec: Box::new(wire::exec(id, &state, None)) }
            }
            Ok(Some(Message::Reply(Reply::Error(problem)))) => AttachReply::Failed { problem: problem.into() },
            Ok(Some(Message::Reply(_))) => continue,
            Ok(None) | Err(_) => {
                AttachReply::Failed { problem: *Refusal::from(Fault::Ended { id: id.clone(), reason: None }).0 }
            }
        };
        let is_last = matches!(reply, AttachReply::Exited { .. } | AttachReply::Failed { .. });
        if send(sink, &reply).await.is_err() || is_last {
            return;
        }
    }
}

async fn inwards(exec: &ExecId, mut stream: SplitStream<WebSocket>, mut feeding: Feeding) {
    // Whatever can't be received or passed on ends the conversation; the program goes on.
    while let Some(Ok(frame)) = stream.next().await {
        let passed = match frame {
            Frame::Binary(bytes) => feeding.stdin(&bytes).await,
            Frame::Text(text) => match serde_json::from_str::<AttachRequest>(&text) {
                Ok(request) => feeding.say(op(exec, request)).await,
                Err(_) => return,
            },
            Frame::Ping(_) | Frame::Pong(_) => Ok(()),
            Frame::Close(_) => return,
        };
        if passed.is_err() {
            // The program has ended, or no longer reads; the other direction says which.
            std::future::pending::<()>().await;
        }
    }
}

fn op(exec: &ExecId, request: AttachRequest) -> Op {
    let exec_id = exec.clone();
    match request {
        AttachRequest::Resize { rows, cols } => {
            Op::Resize { exec_id, size: wire::window(saggar_api::TerminalSize { rows, cols }) }
        }
        AttachRequest::Signal { signal, scope } => {
            Op::Signal { exec_id, signal: signal.number(), scope: wire::scope(scope), wait: false }
        }
        AttachRequest::StdinEnd => Op::StdinEnd { exec_id: None },
    }
}

async fn send(sink: &mut SplitSink<WebSocket, Frame>, reply: &AttachReply) -> Result<(), axum::Error> {
    let text = serde_json::to_string(reply).unwrap_or_default();
    sink.send(Frame::Text(text.into())).await
}
