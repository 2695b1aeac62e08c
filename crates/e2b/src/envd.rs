//! What the agent in an E2B sandbox answers, answered here: each address to what does it.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{Method, StatusCode};
use saggar_domain::SandboxId;
use saggar_http::access::{self, Inside};
use saggar_runtime::Action;
use serde_json::json;

use super::failure::{Code, Failure};
use super::token::{self, Operation};
use super::{connect, filesystem, id, metrics, process, transfer};
use crate::state::Shared;

/// Answers a request for the agent of this sandbox.
pub(super) async fn serve(server: Shared, request: Request, id: SandboxId) -> Response {
    // As by a proxy in front: before anything else, that there is no such sandbox.
    let Some(inside) = access::inside(&server, &id) else { return Failure::gone(id::short(&id)).plain() };
    let (parts, body) = request.into_parts();
    let path = parts.uri.path().to_owned();
    let outcome = match (&parts.method, path.as_str()) {
        (&Method::GET | &Method::HEAD, "/health") => health(&server, &inside).await,
        (&Method::GET, "/metrics") => metrics(&server, &parts, &id).await,
        (&Method::GET, "/envs") => envs(&server, &parts, &id),
        (&Method::GET | &Method::HEAD, "/files") => transfer::download(&server, &parts, &id).await,
        (&Method::POST, "/files") => transfer::upload(&server, &parts, body, &id).await,
        (&Method::POST, _) => return call(server, parts, body, &id, &path).await,
        _ => Err(nothing()),
    };
    outcome.unwrap_or_else(|failure| failure.plain())
}

fn nothing() -> Failure {
    Failure::new(Code::NotFound, "there is nothing at this address")
}

async fn call(server: Shared, parts: Parts, body: Body, id: &SandboxId, path: &str) -> Response {
    let (service, rpc) = match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
        Some(named) => named,
        None => return nothing().plain(),
    };
    let insider = match token::insider(&server, &parts.headers, id) {
        Ok(insider) => insider,
        // Not of the call's own protocol: it comes from in front of it.
        Err(failure) => return failure.plain(),
    };
    match service {
        "process.Process" => process::call(server, insider, parts, body, rpc).await,
        "filesystem.Filesystem" => filesystem::call(server, insider, parts, body, rpc).await,
        _ => Failure::new(Code::Unimplemented, "there is no such service").unary(),
    }
}

/// The answer to a call that the service doesn't have.
pub(super) fn no_such_call() -> Failure {
    Failure::new(Code::Unimplemented, "there is no such call")
}

/// The answer to a unary call.
pub(super) fn answered(outcome: Result<serde_json::Value, Failure>) -> Response {
    match outcome {
        Ok(message) => Json(message).into_response(),
        Err(failure) => failure.unary(),
    }
}

/// The answer to a call that streams.
pub(super) fn streamed(outcome: Result<Response, Failure>) -> Response {
    outcome.unwrap_or_else(|failure| connect::failed(&failure))
}

/// Whether the sandbox runs. One that is paused, or is just ending, doesn't: clients ask here why a stream broke off. Like any traffic this
/// wakes a sandbox that wakes by it.
async fn health(server: &Shared, inside: &Inside) -> Result<Response, Failure> {
    server.sandboxes.check_runs(&inside.may_be_looked_at()?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn metrics(server: &Shared, parts: &Parts, id: &SandboxId) -> Result<Response, Failure> {
    let permit = token::insider(server, &parts.headers, id)?.may(Action::ReadSandbox)?;
    let used = metrics::now(server, &permit).await?;
    Ok(Json(json!({
        "ts": used.at_ms / 1000,
        "cpu_count": used.cpu_count,
        "cpu_used_pct": used.cpu_used_pct,
        "mem_total": used.mem_total,
        "mem_used": used.mem_used,
        "mem_cache": 0,
        "mem_total_mib": used.mem_total >> 20,
        "mem_used_mib": used.mem_used >> 20,
        "disk_used": used.disk_used,
        "disk_total": used.disk_total,
    }))
    .into_response())
}

/// What a sandbox's environment was created with is given to its programs and told to nobody: it may hold secrets.
fn envs(server: &Shared, parts: &Parts, id: &SandboxId) -> Result<Response, Failure> {
    token::insider(server, &parts.headers, id)?;
    Err(Failure::new(Code::Unimplemented, "the environment of a sandbox is not told; programs inside have it"))
}

/// A request for an agent that doesn't say whose: only a signed address of a file can be found.
pub(super) async fn unnamed(State(server): State<Shared>, request: Request) -> Response {
    let operation = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/files") => Operation::Read,
        (&Method::POST, "/files") => Operation::Write,
        _ => return Failure::gone("").plain(),
    };
    let query = transfer::query(request.uri());
    match query.and_then(|query| token::signed_sandbox(&server, operation, &query)) {
        Ok(Some(id)) => serve(server, request, id).await,
        Ok(None) => Failure::new(Code::Unauthenticated, "invalid signature").plain(),
        Err(failure) => failure.plain(),
    }
}
