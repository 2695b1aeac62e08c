//! Execs: started, listed, looked at, fed, signalled.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use saggar_api::{
    Code, Exec as ExecShown, ExecEvent, ExecList, ExecResult, SignalExec, StartExec, StdinQuery, TerminalSize, route,
};
use saggar_domain::{ByteSize, ExecId};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Exec, Read};
use saggar_http::extract::{Json, PathExec, Pieces, Query};
use saggar_http::wire;
use saggar_runtime::{Fault, Followed, Permit};
use saggar_supervisor::control::{From, Op};

use super::events::{sandbox_of, wants_stream};
use super::exec_stream;
use super::resource::resource;
use crate::server::{Server, Shared};

resource! {
    tag "execs": "Process trees run in a sandbox, with their streams, limits and outcome.";
    bounded {
        route::EXEC => get get;
        route::EXEC_SIGNAL => post signal;
        route::EXEC_RESIZE => post resize;
    }
    streaming {
        route::EXECS => post start, get list;
        route::EXEC_STDIN => post stdin;
    }
}

/// Output given with the answer, of each stream, unless more is asked to be kept.
const OUTPUT_DEFAULT: u64 = 1 << 20;
/// The most that is.
const OUTPUT_MAX: u64 = 16 << 20;
/// How often, and how long apart, it is tried to feed a program that somebody else feeds.
const FEED_TRIES: u32 = 40;
const FEED_PAUSE: Duration = Duration::from_millis(50);

/// Run a program
///
/// With `wait` (the default) this answers when the program has ended; with `Accept: text/event-stream` as it goes on; otherwise at once.
/// A client that goes away ends nothing.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/execs", tag = "execs", operation_id = "startExec",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = StartExec,
    responses(
        (status = 200, description = "It has ended, or is followed", content(
            (ExecResult = "application/json"),
            (ExecEvent = "text/event-stream"),
        )),
        (status = 201, description = "It runs", body = ExecShown),
    ),
)]
pub(crate) async fn start(
    allowed: Allowed<Exec>,
    State(server): State<Shared>,
    headers: HeaderMap,
    Json(start): Json<StartExec>,
) -> Result<Response, Refusal> {
    let id = sandbox_of(&allowed.permit)?;
    let user = Some(start.user.unwrap_or_else(|| server.sandboxes.default_user(&allowed.permit)));
    let most = start.output_bytes.map_or(OUTPUT_DEFAULT, ByteSize::bytes).min(OUTPUT_MAX) as usize;
    let wait = start.wait;
    let new = wire::new_exec(start);
    if wants_stream(&headers) {
        let followed = server.sandboxes.follow_exec(&allowed.permit, new).await?;
        return Ok(exec_stream::answer(server, id, followed, user, saggar_api::Offsets::default()));
    }
    if !wait {
        let state = server.sandboxes.start_exec(&allowed.permit, new).await?;
        return Ok((StatusCode::CREATED, axum::Json(wire::exec(&id, &state, user))).into_response());
    }
    let followed = server.sandboxes.follow_exec(&allowed.permit, new).await?;
    let exec_id = followed.state.exec_id.clone();
    tokio::select! {
        finished = followed.finish(&id, most) => {
            Ok(axum::Json(wire::exec_result(&id, finished?, user)).into_response())
        }
        () = server.stops() => Err(Refusal::new(
            Code::Unavailable,
            format!("the server is stopping; exec {exec_id} goes on"),
            "ask for the exec once the server is back",
        )),
    }
}

/// List the execs of a sandbox, newest first, without their output
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/execs", tag = "execs", operation_id = "listExecs",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    responses((status = 200, description = "The execs that are remembered", body = ExecList)),
)]
pub(crate) async fn list(
    allowed: Allowed<Read>,
    State(server): State<Shared>,
) -> Result<axum::Json<ExecList>, Refusal> {
    let id = sandbox_of(&allowed.permit)?;
    let views = server.sandboxes.execs(&allowed.permit).await?;
    Ok(axum::Json(ExecList { items: views.into_iter().map(|view| wire::exec_view(&id, view).exec).collect() }))
}

/// Look at an exec, with what is kept of its output
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/execs/{exec}", tag = "execs", operation_id = "getExec",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        ("exec" = saggar_api::schema::ExecId, Path, description = "The exec"),
    ),
    responses((status = 200, description = "The exec", body = ExecResult)),
)]
pub(crate) async fn get(
    allowed: Allowed<Read>,
    State(server): State<Shared>,
    PathExec(exec): PathExec,
) -> Result<axum::Json<ExecResult>, Refusal> {
    let view = server.sandboxes.exec(&allowed.permit, &exec).await?;
    Ok(axum::Json(wire::exec_view(&sandbox_of(&allowed.permit)?, view)))
}

/// Send bytes to the stdin of an exec that was started with `stdin`
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/execs/{exec}/stdin", tag = "execs", operation_id = "writeStdin",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        ("exec" = saggar_api::schema::ExecId, Path, description = "The exec"),
        StdinQuery,
    ),
    request_body(content = inline(saggar_api::schema::Octets), content_type = "application/octet-stream"),
    responses((status = 204, description = "They were handed over")),
)]
pub(crate) async fn stdin(
    allowed: Allowed<Exec>,
    State(server): State<Shared>,
    PathExec(exec): PathExec,
    Query(query): Query<StdinQuery>,
    mut body: Pieces,
) -> Result<StatusCode, Refusal> {
    let mut followed = server.feed(&allowed.permit, &exec, From::Now).await?;
    let gone = |_| Refusal::new(Code::ExecEnded, format!("exec {exec} no longer reads"), "look how it ended");
    while let Some(piece) = body.next().await? {
        followed.feeding.stdin(&piece).await.map_err(gone)?;
    }
    if query.end {
        followed.feeding.say(Op::StdinEnd { exec_id: None }).await.map_err(gone)?;
    }
    Ok(StatusCode::NO_CONTENT)
}

impl Server {
    /// Attaches to feed a program. Whoever fed it last may have left a moment ago, so that is waited for.
    pub(super) async fn feed(&self, permit: &Permit, exec: &ExecId, from: From) -> Result<Followed, Refusal> {
        self.e2b.yield_input(exec);
        let mut tries = FEED_TRIES;
        loop {
            match self.sandboxes.attach(permit, exec, from, true).await {
                Ok(followed) => return Ok(followed),
                Err(Fault::Capacity { what, .. }) => {
                    tries -= 1;
                    if tries == 0 {
                        return Err(Refusal::new(Code::Conflict, what, "end the other connection first"));
                    }
                    tokio::time::sleep(FEED_PAUSE).await;
                }
                Err(Fault::Refused(problem)) if problem.code == saggar_domain::Code::InvalidStdin => {
                    return Err(Refusal::new(Code::ExecEnded, problem.message, "start it with \"stdin\": true"));
                }
                Err(fault) => return Err(fault.into()),
            }
        }
    }
}

/// Send a signal to an exec
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/execs/{exec}/signal", tag = "execs", operation_id = "signalExec",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        ("exec" = saggar_api::schema::ExecId, Path, description = "The exec"),
    ),
    request_body = SignalExec,
    responses((status = 204, description = "It was sent")),
)]
pub(crate) async fn signal(
    allowed: Allowed<Exec>,
    State(server): State<Shared>,
    PathExec(exec): PathExec,
    Json(signal): Json<SignalExec>,
) -> Result<StatusCode, Refusal> {
    server.sandboxes.signal(&allowed.permit, &exec, signal.signal.number(), wire::scope(signal.scope)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Give the terminal of an exec another size
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/execs/{exec}/resize", tag = "execs", operation_id = "resizeExec",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        ("exec" = saggar_api::schema::ExecId, Path, description = "The exec"),
    ),
    request_body = TerminalSize,
    responses((status = 204, description = "It has that size")),
)]
pub(crate) async fn resize(
    allowed: Allowed<Exec>,
    State(server): State<Shared>,
    PathExec(exec): PathExec,
    Json(size): Json<TerminalSize>,
) -> Result<StatusCode, Refusal> {
    server.sandboxes.resize(&allowed.permit, &exec, wire::window(size)).await?;
    Ok(StatusCode::NO_CONTENT)
}
