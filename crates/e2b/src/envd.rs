//! Answers the requests for the agent of an E2B sandbox: dispatches each path to its implementation.

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

use super::failure::{CallFailure, Code};
use super::token::{self, Operation};
use super::{connect, filesystem, id, metrics, process, transfer};
use crate::state::Shared;

/// Answers a request for the agent of this sandbox.
pub(super) async fn serve(server: Shared, request: Request, id: SandboxId) -> Response {
    // As E2B's proxy does: first of all, report a missing sandbox.
    let Some(inside) = access::inside(&server, &id) else { return CallFailure::gone(id::short(&id)).plain() };
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

fn nothing() -> CallFailure {
    CallFailure::new(Code::NotFound, "this path does not exist")
}

async fn call(server: Shared, parts: Parts, body: Body, id: &SandboxId, path: &str) -> Response {
    let (service, rpc) = match path.strip_prefix('/').and_then(|path| path.split_once('/')) {
        Some(named) => named,
        None => return nothing().plain(),
    };
    let insider = match token::insider(&server, &parts.headers, id) {
        Ok(insider) => insider,
        // Not in the call's own protocol: the error comes from the layer before it.
        Err(failure) => return failure.plain(),
    };
    match service {
        "process.Process" => process::call(server, insider, parts, body, rpc).await,
        "filesystem.Filesystem" => filesystem::call(server, insider, parts, body, rpc).await,
        _ => CallFailure::new(Code::Unimplemented, "unknown service").unary(),
    }
}

/// The response to an unknown call of a service.
pub(super) fn no_such_call() -> CallFailure {
    CallFailure::new(Code::Unimplemented, "unknown call")
}

/// The response to a unary call.
pub(super) fn answered(outcome: Result<serde_json::Value, CallFailure>) -> Response {
    match outcome {
        Ok(message) => Json(message).into_response(),
        Err(failure) => failure.unary(),
    }
}

/// The response to a streaming call.
pub(super) fn streamed(outcome: Result<Response, CallFailure>) -> Response {
    outcome.unwrap_or_else(|failure| connect::failed(&failure))
}

/// Whether the sandbox runs. A paused or ending one doesn't: clients ask here why a stream was interrupted. Like any
/// traffic, this resumes a sandbox with auto-resume.
async fn health(server: &Shared, inside: &Inside) -> Result<Response, CallFailure> {
    server.sandboxes.check_runs(&inside.may_be_looked_at()?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn metrics(server: &Shared, parts: &Parts, id: &SandboxId) -> Result<Response, CallFailure> {
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

/// The environment that a sandbox was created with is given to its programs and never returned, because it may
/// contain secrets.
fn envs(server: &Shared, parts: &Parts, id: &SandboxId) -> Result<Response, CallFailure> {
    token::insider(server, &parts.headers, id)?;
    Err(CallFailure::new(Code::Unimplemented, "the environment of a sandbox can't be read; its programs have it"))
}

/// A request for an agent that doesn't name its sandbox: only a signed URL of a file can be resolved.
pub(super) async fn unnamed(State(server): State<Shared>, request: Request) -> Response {
    let operation = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/files") => Operation::Read,
        (&Method::POST, "/files") => Operation::Write,
        _ => return CallFailure::gone("").plain(),
    };
    let query = transfer::query(request.uri());
    match query.and_then(|query| token::signed_sandbox(&server, operation, &query)) {
        Ok(Some(id)) => serve(server, request, id).await,
        Ok(None) => CallFailure::new(Code::Unauthenticated, "invalid signature").plain(),
        Err(failure) => failure.plain(),
    }
}
