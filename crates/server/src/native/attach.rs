//! A WebSocket to an exec: both output streams, stdin, signals and resizing.

use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::{CloseFrame, Message as Frame, Utf8Bytes, WebSocket, WebSocketUpgrade, close_code};
use axum::response::Response;
use bytes::{BufMut, BytesMut};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use http::HeaderMap;
use http::header::{HOST, ORIGIN};
use saggar_api::{ATTACH_MESSAGE_BYTES_MAX, AttachQuery, AttachReply, AttachRequest, Code, route};
use saggar_domain::{ExecId, SandboxId, TerminalSize};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Exec};
use saggar_http::context;
use saggar_http::extract::{PathExec, Query};
use saggar_http::wire;
use saggar_runtime::{ControlError, ExecEvent, Feeding, Followed, Following};

use super::events::sandbox_of;
use super::resource::resource;
use crate::server::{Server, Shared};

resource! {
    streaming {
        route::EXEC_ATTACH => get attach;
    }
}

/// Interval of pings to a silent client.
const PING_EVERY: Duration = Duration::from_secs(20);
/// Maximum of unsent data before the program has to wait.
const WRITE_BUFFER_MAX: usize = 2 * ATTACH_MESSAGE_BYTES_MAX;

/// Attach to an exec over a WebSocket
///
/// Binary messages from the client are stdin; those from the server are one byte (1 stdout, 2 stderr) and output.
/// Text messages are JSON: `AttachRequest` from the client, `AttachReply` from the server.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/execs/{exec}/attach", tag = "execs", operation_id = "attachExec",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        ("exec" = saggar_api::schema::ExecId, Path, description = "The exec"),
        AttachQuery,
    ),
    responses(
        (status = 101, description = "The connection becomes a WebSocket", body = AttachReply),
        (status = 426, description = "The request is not a WebSocket upgrade"),
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
        Refusal::invalid(
            "this path only accepts WebSocket connections",
            "request an upgrade to `websocket`, over HTTP/1.1",
        )
    })?;
    let id = sandbox_of(&allowed.permit)?;
    let from = query.from;
    let followed = match server.feed(&allowed.permit, &exec, from).await {
        // A program without stdin can still be followed.
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

/// A browser sends the origin of its page; only ours, and those in the settings, are allowed.
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
        "a page of another origin may not open a WebSocket",
        "add the page's origin to the setting `origins`",
    ))
}

async fn converse(server: Shared, id: SandboxId, followed: Followed, socket: WebSocket) {
    let Followed { exec, following, feeding } = followed;
    let (mut sink, stream) = socket.split();
    let started = AttachReply::Started { exec_id: exec.exec_id.clone(), pid: Some(exec.pid) };
    if send(&mut sink, &started).await.is_err() {
        return;
    }
    // Both directions run concurrently. The client's end ends the connection; the program's end is reported first.
    tokio::select! {
        () = outwards(&id, following, &mut sink) => {}
        () = inwards(&exec.exec_id, stream, feeding) => {}
        () = server.stops() => {}
    }
    let close = CloseFrame { code: close_code::NORMAL, reason: Utf8Bytes::from_static("") };
    // The client may be gone already.
    let _ = tokio::time::timeout(PING_EVERY, sink.send(Frame::Close(Some(close)))).await;
}

async fn outwards(id: &SandboxId, mut following: Following, sink: &mut SplitSink<WebSocket, Frame>) {
    loop {
        let sent = match tokio::time::timeout(PING_EVERY, following.next()).await {
            Err(_) => sink.send(Frame::Ping(bytes::Bytes::new())).await,
            Ok(None) => return,
            Ok(Some(ExecEvent::Output { stream, bytes })) => {
                let mut frame = BytesMut::with_capacity(bytes.len() + 1);
                frame.put_u8(stream.number());
                frame.extend_from_slice(&bytes);
                sink.send(Frame::Binary(frame.freeze())).await
            }
            Ok(Some(ExecEvent::Gap { stream, bytes })) => send(sink, &AttachReply::Gap { stream, bytes }).await,
            Ok(Some(ExecEvent::Exited(exec))) => {
                send(sink, &AttachReply::Exited { exec: Box::new(wire::exec(id, &exec, None)) }).await
            }
            Ok(Some(ExecEvent::Failed(fault))) => {
                send(sink, &AttachReply::Failed { problem: *Refusal::from(fault).0 }).await
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

async fn inwards(exec: &ExecId, mut stream: SplitStream<WebSocket>, mut feeding: Feeding) {
    // An error ends the connection; the program keeps running.
    while let Some(Ok(frame)) = stream.next().await {
        let passed = match frame {
            Frame::Binary(bytes) => feeding.stdin(&bytes).await,
            Frame::Text(text) => match serde_json::from_str::<AttachRequest>(&text) {
                Ok(request) => pass(exec, request, &mut feeding).await,
                Err(_) => return,
            },
            Frame::Ping(_) | Frame::Pong(_) => Ok(()),
            Frame::Close(_) => return,
        };
        if passed.is_err() {
            // The program has ended, or no longer reads; the other direction reports which.
            std::future::pending::<()>().await;
        }
    }
}

async fn pass(exec: &ExecId, request: AttachRequest, feeding: &mut Feeding) -> Result<(), ControlError> {
    match request {
        AttachRequest::Resize { rows, cols } => feeding.resize(exec.clone(), TerminalSize { rows, cols }).await,
        AttachRequest::Signal { signal, scope } => feeding.signal(exec.clone(), signal, scope).await,
        AttachRequest::StdinEnd => feeding.end().await,
    }
}

async fn send(sink: &mut SplitSink<WebSocket, Frame>, reply: &AttachReply) -> Result<(), axum::Error> {
    let text = serde_json::to_string(reply).unwrap_or_default();
    sink.send(Frame::Text(text.into())).await
}
