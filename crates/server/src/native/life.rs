//! The lifecycle of a sandbox: pause, resume, extend, metrics.

use axum::extract::State;
use saggar_api::{Metrics, PauseSandbox, ResumeSandbox, Sandbox, SetTimeout, route};
use saggar_domain::Timeout;
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Change, Read};
use saggar_http::extract::Json;
use saggar_http::wire;
use saggar_runtime::{Keep, NewTerms, Patch};

use super::resource::resource;
use crate::server::Shared;

resource! {
    bounded {
        route::PAUSE => post pause;
        route::RESUME => post resume;
        route::TIMEOUT => post set_timeout;
        route::METRICS => get metrics;
    }
}

/// Pause a sandbox
///
/// Its processes are frozen in memory. With `"memory": false` they are ended, and its files are kept on disk; that takes as long as a snapshot.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/pause", tag = "sandboxes", operation_id = "pauseSandbox",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = Option<PauseSandbox>,
    responses((status = 200, description = "The sandbox in its current state", body = Sandbox)),
)]
pub(crate) async fn pause(
    allowed: Allowed<Change>,
    State(server): State<Shared>,
    Json(pause): Json<PauseSandbox>,
) -> Result<axum::Json<Sandbox>, Refusal> {
    let keep = if pause.memory { Keep::Memory } else { Keep::Files };
    let row = server.sandboxes.pause(&allowed.permit, keep).await?;
    let mut sandbox = wire::sandbox(row, server.known_unenforced())?;
    server.fill_kept(&mut sandbox);
    Ok(axum::Json(sandbox))
}

/// Resume a paused sandbox
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/resume", tag = "sandboxes", operation_id = "resumeSandbox",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = ResumeSandbox,
    responses((status = 200, description = "The sandbox in its current state", body = Sandbox)),
)]
pub(crate) async fn resume(
    allowed: Allowed<Change>,
    State(server): State<Shared>,
    Json(resume): Json<ResumeSandbox>,
) -> Result<axum::Json<Sandbox>, Refusal> {
    let terms = match resume.ttl {
        None => None,
        Some(ttl) => Some(same_terms(&server, &allowed, ttl).await?),
    };
    let row = server.sandboxes.resume(&allowed.permit, terms).await?;
    Ok(axum::Json(wire::sandbox(row, server.known_unenforced())?))
}

/// Set the remaining lifetime of a sandbox
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/timeout", tag = "sandboxes", operation_id = "setTimeout",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = SetTimeout,
    responses((status = 200, description = "The sandbox in its current state", body = Sandbox)),
)]
pub(crate) async fn set_timeout(
    allowed: Allowed<Change>,
    State(server): State<Shared>,
    Json(set): Json<SetTimeout>,
) -> Result<axum::Json<Sandbox>, Refusal> {
    let terms = Some(same_terms(&server, &allowed, set.ttl).await?);
    let row = server.sandboxes.patch(&allowed.permit, Patch { terms, ..Patch::default() }).await?;
    Ok(axum::Json(wire::sandbox(row, server.known_unenforced())?))
}

/// The current terms with another lifetime.
async fn same_terms(server: &Shared, allowed: &Allowed<Change>, ttl: Timeout) -> Result<NewTerms, Refusal> {
    let lifetime = server.sandboxes.current(&allowed.permit).await?.asked.lifetime;
    let ttl = wire::lifetime("ttl", ttl)?;
    Ok(NewTerms { ttl, then: lifetime.on_deadline, idle_timeout: lifetime.idle_timeout })
}

/// Read a sandbox's resource usage, now and over the last half hour
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/metrics", tag = "sandboxes", operation_id = "getMetrics",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    responses((status = 200, description = "What it uses", body = Metrics)),
)]
pub(crate) async fn metrics(
    allowed: Allowed<Read>,
    State(server): State<Shared>,
) -> Result<axum::Json<Metrics>, Refusal> {
    Ok(axum::Json(wire::metrics(server.sandboxes.usage(&allowed.permit).await?)))
}
