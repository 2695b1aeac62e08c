//! Sandboxes: create, list, read, change, end.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use saggar_api::{
    Change as Field, CreateSandbox, CreatedSandbox, ListSandboxes, Sandbox, SandboxList, Secret, UpdateSandbox, route,
};
use saggar_domain::SandboxState;
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Change, Create, Kill, List, Read};
use saggar_http::extract::{Json, JsonText, LocalCaller, Query};
use saggar_http::live::SandboxesAsked;
use saggar_http::request::idempotency;
use saggar_http::wire;
use saggar_runtime::{NewTerms, Patch};
use saggar_store as store;

use super::resource::resource;
use crate::server::Shared;

resource! {
    tag "sandboxes": "Isolated environments: files, processes, network boundary, limits, life.";
    bounded {
        route::SANDBOXES => post create, get list;
        route::SANDBOX => get get, patch update, delete end;
    }
}

/// Create a sandbox
///
/// The sandbox is ready when this responds. With the header `Idempotency-Key`, repeating the request within a day
/// returns the same sandbox.
#[utoipa::path(
    post, path = "/api/v1/sandboxes", tag = "sandboxes", operation_id = "createSandbox",
    params(("Idempotency-Key" = Option<String>, Header, description = "Idempotency key, chosen by the client: 1 to 255 visible ASCII characters")),
    request_body = CreateSandbox,
    responses((status = 201, description = "It is there", body = CreatedSandbox)),
)]
pub(crate) async fn create(
    allowed: Allowed<Create>,
    State(server): State<Shared>,
    LocalCaller(caller): LocalCaller,
    headers: HeaderMap,
    body: JsonText,
) -> Result<Response, Refusal> {
    let create: CreateSandbox = body.read()?;
    let idempotency = idempotency(&headers, &create)?;
    let new = wire::new_sandbox(create, caller, server.settings.default_ttl)?;
    let created = server.sandboxes.create(&allowed.permit, new, idempotency).await?;
    let unenforced = server.learn_unenforced(created.unenforced);
    let sandbox = wire::sandbox(created.sandbox, unenforced)?;
    let access_token = Some(Secret::new(created.access_token));
    Ok((StatusCode::CREATED, axum::Json(CreatedSandbox { sandbox, access_token })).into_response())
}

/// List sandboxes, newest first
#[utoipa::path(
    get, path = "/api/v1/sandboxes", tag = "sandboxes", operation_id = "listSandboxes",
    params(ListSandboxes),
    responses((status = 200, description = "A page of sandboxes", body = SandboxList)),
)]
pub(crate) async fn list(
    allowed: Allowed<List>,
    State(server): State<Shared>,
    Query(list): Query<ListSandboxes>,
) -> Result<axum::Json<SandboxList>, Refusal> {
    let states: BTreeSet<SandboxState> = match &list.state {
        None => SandboxState::ALL.iter().copied().filter(|state| state.is_live()).collect(),
        Some(states) => states.0.iter().copied().collect(),
    };
    let asked = SandboxesAsked {
        labels: wire::labels(list.label.iter().map(|label| (label.name(), label.value())))?,
        states,
        limit: list.limit,
        cursor: list.cursor,
    };
    let page = server.sandbox_page(&allowed.permit, asked).await?;
    let items = page.items.into_iter().map(|seen| seen.sandbox).collect();
    Ok(axum::Json(SandboxList { items, next_cursor: page.next }))
}

/// Read a sandbox, live or ended
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}", tag = "sandboxes", operation_id = "getSandbox",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    responses((status = 200, description = "The sandbox", body = Sandbox)),
)]
pub(crate) async fn get(allowed: Allowed<Read>, State(server): State<Shared>) -> Result<axum::Json<Sandbox>, Refusal> {
    Ok(axum::Json(server.look(&allowed.permit).await?.sandbox))
}

/// Change a sandbox's lifetime, its labels, its auto-resume, or the access to its ports
#[utoipa::path(
    patch, path = "/api/v1/sandboxes/{id}", tag = "sandboxes", operation_id = "updateSandbox",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = UpdateSandbox,
    responses((status = 200, description = "The sandbox in its current state", body = Sandbox)),
)]
pub(crate) async fn update(
    allowed: Allowed<Change>,
    State(server): State<Shared>,
    Json(update): Json<UpdateSandbox>,
) -> Result<axum::Json<Sandbox>, Refusal> {
    let row = server.sandboxes.current(&allowed.permit).await?;
    let patch = Patch {
        terms: new_terms(&update, &row)?,
        labels: update.labels.as_ref().map(|labels| wire::labels(labels.iter())).transpose()?,
        auto_resume: update.auto_resume,
        public_ports: update.ports.as_ref().map(wire::public_ports).transpose()?,
        ingress: update.ports.as_ref().map(wire::ingress).transpose()?,
    };
    let row = server.sandboxes.patch(&allowed.permit, patch).await?;
    Ok(axum::Json(wire::sandbox(row, server.known_unenforced())?))
}

/// The new terms; `None` if the lifetime stays unchanged.
fn new_terms(update: &UpdateSandbox, row: &store::Sandbox) -> Result<Option<NewTerms>, Refusal> {
    let lifetime = &row.asked.lifetime;
    let now = saggar_domain::Timestamp::from(std::time::SystemTime::now());
    let left = |until: u64| std::time::Duration::from_millis(until.saturating_sub(now.as_millis()));
    let ttl = match (update.ttl, update.deadline) {
        (Some(_), Some(_)) => {
            return Err(Refusal::new(
                saggar_api::Code::Contradiction,
                "both ttl and deadline are set",
                "set only one of them",
            ));
        }
        (Some(ttl), None) => Some(wire::lifetime("ttl", ttl)?),
        (None, Some(deadline)) => Some(left(deadline.as_millis())),
        (None, None) => None,
    };
    if ttl.is_none() && update.on_timeout.is_none() && update.idle_timeout.is_keep() {
        return Ok(None);
    }
    Ok(Some(NewTerms {
        ttl: ttl.unwrap_or_else(|| lifetime.deadline.map_or(std::time::Duration::ZERO, |at| left(at.as_millis()))),
        then: update.on_timeout.unwrap_or(lifetime.on_deadline),
        idle_timeout: match update.idle_timeout {
            Field::Keep => lifetime.idle_timeout,
            Field::Clear => None,
            Field::Set(span) => Some(wire::lifetime("idle_timeout", span)?),
        },
    }))
}

/// End a sandbox
///
/// When this responds, nothing of the sandbox is left on the host. Repeating it for an ended sandbox returns the same
/// response.
#[utoipa::path(
    delete, path = "/api/v1/sandboxes/{id}", tag = "sandboxes", operation_id = "endSandbox",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    responses((status = 200, description = "The ended sandbox", body = Sandbox)),
)]
pub(crate) async fn end(allowed: Allowed<Kill>, State(server): State<Shared>) -> Result<axum::Json<Sandbox>, Refusal> {
    let row = server.sandboxes.kill(&allowed.permit).await?;
    Ok(axum::Json(wire::sandbox(row, server.known_unenforced())?))
}
