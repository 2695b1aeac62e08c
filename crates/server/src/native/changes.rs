//! What an ended sandbox changed in its workspace: list, compare, apply, drop.

use axum::extract::State;
use http::StatusCode;
use saggar_api::{AppliedChanges, ApplyChanges, ChangeDiffQuery, ChangeDiffs, ChangeList, route};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Change, Read};
use saggar_http::extract::{Json, LocalCaller, Query};
use saggar_http::wire;

use super::resource::resource;
use crate::server::Shared;

resource! {
    tag "changes": "What sandboxes changed in directories of the host.";
    bounded {
        route::CHANGES => get list;
        route::CHANGES_DIFF => get diff;
        route::CHANGES_APPLY => post apply;
        route::CHANGES_DROP => post drop_all;
    }
}

/// List what an ended sandbox changed in its workspace
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/changes", tag = "changes", operation_id = "listChanges",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    responses((status = 200, description = "The changes that are kept", body = ChangeList)),
)]
pub(crate) async fn list(
    allowed: Allowed<Read>,
    State(server): State<Shared>,
) -> Result<axum::Json<ChangeList>, Refusal> {
    Ok(axum::Json(wire::changes(server.sandboxes.changes(&allowed.permit).await?)))
}

/// Compare changes with the host's directory
///
/// Those of a user's own directory are compared only for that user, through the server's Unix socket.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/changes/diff", tag = "changes", operation_id = "diffChanges",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"), ChangeDiffQuery),
    responses((status = 200, description = "The changes with their diffs", body = ChangeDiffs)),
)]
pub(crate) async fn diff(
    allowed: Allowed<Read>,
    LocalCaller(caller): LocalCaller,
    State(server): State<Shared>,
    Query(ChangeDiffQuery { path }): Query<ChangeDiffQuery>,
) -> Result<axum::Json<ChangeDiffs>, Refusal> {
    Ok(axum::Json(wire::diffs(server.sandboxes.diff_changes(&allowed.permit, caller, path).await?)))
}

/// Apply changes to the host's directory
///
/// A path that is protected, that git would act on, or that changed on the host too is refused and stays kept. Set-id bits are never applied.
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/changes/apply", tag = "changes", operation_id = "applyChanges",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = ApplyChanges,
    responses((status = 200, description = "The outcome, path by path", body = AppliedChanges)),
)]
pub(crate) async fn apply(
    allowed: Allowed<Change>,
    LocalCaller(caller): LocalCaller,
    State(server): State<Shared>,
    Json(ApplyChanges { paths }): Json<ApplyChanges>,
) -> Result<axum::Json<AppliedChanges>, Refusal> {
    Ok(axum::Json(wire::applied(server.sandboxes.apply_changes(&allowed.permit, caller, paths).await?)))
}

/// Forget what an ended sandbox changed
#[utoipa::path(
    post, path = "/api/v1/sandboxes/{id}/changes/drop", tag = "changes", operation_id = "dropChanges",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    responses((status = 204, description = "The changes are gone; the host's directory is as it was")),
)]
pub(crate) async fn drop_all(allowed: Allowed<Change>, State(server): State<Shared>) -> Result<StatusCode, Refusal> {
    server.sandboxes.drop_changes(&allowed.permit).await?;
    Ok(StatusCode::NO_CONTENT)
}
