//! Volumes: create, list, read and remove, within the project of the authenticating key.

use axum::extract::State;
use http::StatusCode;
use saggar_api::{CreateVolume, Volume, VolumeList, route};
use saggar_domain::{Sharing, VolumeName};
use saggar_http::Refusal;
use saggar_http::access::Allowed;
use saggar_http::extract::{Json, PathId};
use saggar_http::wire;
use saggar_runtime::VOLUMES;

use super::resource::resource;
use crate::server::Shared;

resource! {
    tag "volumes": "Storage that outlives sandboxes.";
    bounded {
        route::VOLUMES => post create, get list;
        route::VOLUME => get get, delete remove;
    }
}

saggar_http::wanted! {
    /// Creates, lists and removes volumes.
    Manage => Manage(VOLUMES);
}

/// Create a volume
///
/// All of its size is reserved on the server's disk at once. Sandboxes mount it by name with `volumes`.
#[utoipa::path(
    post, path = "/api/v1/volumes", tag = "volumes", operation_id = "createVolume",
    request_body = CreateVolume,
    responses((status = 201, description = "The volume, empty", body = Volume)),
)]
pub(crate) async fn create(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    Json(CreateVolume { name, size, sharing }): Json<CreateVolume>,
) -> Result<(StatusCode, axum::Json<Volume>), Refusal> {
    let sharing = sharing.unwrap_or(Sharing::Exclusive);
    let volume = server.sandboxes.create_volume(&allowed.permit, name, size, sharing).await?;
    Ok((StatusCode::CREATED, axum::Json(wire::volume(volume))))
}

/// List volumes, by name
#[utoipa::path(
    get, path = "/api/v1/volumes", tag = "volumes", operation_id = "listVolumes",
    responses((status = 200, description = "The volumes of the project, and the sandboxes that use them", body = VolumeList)),
)]
pub(crate) async fn list(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
) -> Result<axum::Json<VolumeList>, Refusal> {
    let volumes = server.sandboxes.volumes(&allowed.permit).await?;
    Ok(axum::Json(VolumeList { items: volumes.into_iter().map(wire::volume).collect() }))
}

/// Read a volume
#[utoipa::path(
    get, path = "/api/v1/volumes/{volume}", tag = "volumes", operation_id = "getVolume",
    params(("volume" = saggar_api::schema::VolumeName, Path, description = "The volume's name")),
    responses((status = 200, description = "The volume, and the sandboxes that use it", body = Volume)),
)]
pub(crate) async fn get(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(name): PathId<VolumeName>,
) -> Result<axum::Json<Volume>, Refusal> {
    Ok(axum::Json(wire::volume(server.sandboxes.volume(&allowed.permit, &name).await?)))
}

/// Remove a volume, with everything in it
///
/// Refused while a live sandbox uses it.
#[utoipa::path(
    delete, path = "/api/v1/volumes/{volume}", tag = "volumes", operation_id = "removeVolume",
    params(("volume" = saggar_api::schema::VolumeName, Path, description = "The volume's name")),
    responses((status = 204, description = "The volume is gone")),
)]
pub(crate) async fn remove(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(name): PathId<VolumeName>,
) -> Result<StatusCode, Refusal> {
    server.sandboxes.remove_volume(&allowed.permit, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}
