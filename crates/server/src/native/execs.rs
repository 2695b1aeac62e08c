//! Execs: start, list, read, feed, signal.

use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use saggar_api::{
    Code, Exec as ExecShown, ExecEvent, ExecList, ExecResult, ResizeExec, SignalExec, StartExec, StdinQuery,
    TerminalSizeShape, route,
};
use saggar_domain::{Beginning, ByteSize, ExecId, ExecSpec};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Exec, Read};
use saggar_http::extract::{Json, PathExec, Pieces, Query};
use saggar_http::wire;
use saggar_runtime::{Fault, Followed, Permit};

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

/// Default maximum of the returned output of each stream.
const OUTPUT_DEFAULT: u64 = 1 << 20;
/// Upper limit of the returned output of each stream.
const OUTPUT_MAX: u64 = 16 << 20;
/// Number of attempts, and the delay between them, to feed a program that another client feeds.
const FEED_TRIES: u32 = 40;
const FEED_PAUSE: Duration = Duration::from_millis(50);

/// Run a program
///
/// With `wait` (the default) the response comes when the program has ended; with `Accept: text/event-stream` it
/// streams the output; otherwise it comes at once. The program keeps running if the client disconnects.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/execs", tag = "execs", operation_id = "startExec",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = StartExec,
    responses(
        (status = 200, description = "The ended program, or its output stream", content(
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
    let spec = ExecSpec::from(start);
    if wants_stream(&headers) {
        let followed = server.sandboxes.follow_exec(&allowed.permit, spec).await?;
        return Ok(exec_stream::answer(server, id, followed, user));
    }
    if !wait {
        let state = server.sandboxes.start_exec(&allowed.permit, spec).await?;
        return Ok((StatusCode::CREATED, axum::Json(wire::exec(&id, &state, user))).into_response());
    }
    let followed = server.sandboxes.follow_exec(&allowed.permit, spec).await?;
    let exec_id = followed.exec.exec_id.clone();
    tokio::select! {
        finished = followed.finish(most) => {
            Ok(axum::Json(wire::exec_result(&id, finished?, user)).into_response())
        }
        () = server.stops() => Err(Refusal::new(
            Code::Unavailable,
            format!("the server is stopping; exec {exec_id} keeps running"),
            "read the exec once the server is back",
        )),
    }
}

/// List the execs of a sandbox, newest first, without their output
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/execs", tag = "execs", operation_id = "listExecs",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    responses((status = 200, description = "The remembered execs", body = ExecList)),
)]
pub(crate) async fn list(
    allowed: Allowed<Read>,
    State(server): State<Shared>,
) -> Result<axum::Json<ExecList>, Refusal> {
    let id = sandbox_of(&allowed.permit)?;
    let views = server.sandboxes.execs(&allowed.permit).await?;
    Ok(axum::Json(ExecList { items: views.into_iter().map(|view| wire::exec_view(&id, view).exec).collect() }))
}

/// Read an exec with its kept output
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
    responses((status = 204, description = "The bytes were sent")),
)]
pub(crate) async fn stdin(
    allowed: Allowed<Exec>,
    State(server): State<Shared>,
    PathExec(exec): PathExec,
    Query(query): Query<StdinQuery>,
    mut body: Pieces,
) -> Result<StatusCode, Refusal> {
    let mut followed = server.feed(&allowed.permit, &exec, Beginning::Now).await?;
    let gone = |_| Refusal::new(Code::ExecEnded, format!("exec {exec} no longer reads"), "check how it ended");
    while let Some(piece) = body.next().await? {
        followed.feeding.stdin(&piece).await.map_err(gone)?;
    }
    if query.end {
        followed.feeding.end().await.map_err(gone)?;
    }
    Ok(StatusCode::NO_CONTENT)
}

impl Server {
    /// Attaches to feed a program. Waits for another client that may just have disconnected.
    pub(super) async fn feed(&self, permit: &Permit, exec: &ExecId, from: Beginning) -> Result<Followed, Refusal> {
        self.e2b.yield_input(exec);
        let mut tries = FEED_TRIES;
        loop {
            match self.sandboxes.attach(permit, exec, from, true).await {
                Ok(followed) => return Ok(followed),
                Err(Fault::Capacity { what, .. }) => {
                    tries -= 1;
                    if tries == 0 {
                        return Err(Refusal::new(Code::Conflict, what, "close the other connection first"));
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
    server.sandboxes.signal(&allowed.permit, &exec, signal.signal, signal.scope).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Resize the terminal of an exec
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/execs/{exec}/resize", tag = "execs", operation_id = "resizeExec",
    params(
        ("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"),
        ("exec" = saggar_api::schema::ExecId, Path, description = "The exec"),
    ),
    request_body = TerminalSizeShape,
    responses((status = 204, description = "The terminal was resized")),
)]
pub(crate) async fn resize(
    allowed: Allowed<Exec>,
    State(server): State<Shared>,
    PathExec(exec): PathExec,
    Json(ResizeExec(size)): Json<ResizeExec>,
) -> Result<StatusCode, Refusal> {
    server.sandboxes.resize(&allowed.permit, &exec, size).await?;
    Ok(StatusCode::NO_CONTENT)
}
