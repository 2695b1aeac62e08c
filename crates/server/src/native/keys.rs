//! API keys: made, listed, revoked, each within the project of the key that asks.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use saggar_api::{CreateKey, CreatedKey, KeyList, Secret, route};
use saggar_domain::{KeyId, Timeout};
use saggar_http::Refusal;
use saggar_http::access::Allowed;
use saggar_http::extract::{Json, PathId};
use saggar_http::wire;
use saggar_runtime::KEYS;

use super::resource::resource;
use crate::server::Shared;

resource! {
    tag "keys": "API keys of the project.";
    bounded {
        route::KEYS => post create, get list;
        route::KEY => delete revoke;
    }
}

saggar_http::wanted! {
    /// Makes, lists and revokes keys.
    Manage => Manage(KEYS);
}

/// Make a key
#[utoipa::path(
    post, path = "/api/v1/keys", tag = "keys", operation_id = "createKey",
    request_body = CreateKey,
    responses((status = 201, description = "The key; its secret is in this answer only", body = CreatedKey)),
)]
pub(crate) async fn create(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    Json(create): Json<CreateKey>,
) -> Result<Response, Refusal> {
    let name = create.name.as_str();
    let (key, secret) =
        server.sandboxes.create_key(&allowed.permit, name, create.expires.map(Timeout::duration)).await?;
    let created = CreatedKey { key: wire::key(key)?, secret: Secret::new(secret.expose()) };
    Ok((StatusCode::CREATED, axum::Json(created)).into_response())
}

/// List keys, newest first
#[utoipa::path(
    get, path = "/api/v1/keys", tag = "keys", operation_id = "listKeys",
    responses((status = 200, description = "The keys of the project, without their secrets", body = KeyList)),
)]
pub(crate) async fn list(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
) -> Result<axum::Json<KeyList>, Refusal> {
    let keys = server.sandboxes.keys(&allowed.permit).await?;
    Ok(axum::Json(KeyList { items: keys.into_iter().map(wire::key).collect::<Result<_, _>>()? }))
}

/// Revoke a key: it works no more from the moment this answers
#[utoipa::path(
    delete, path = "/api/v1/keys/{key}", tag = "keys", operation_id = "revokeKey",
    params(("key" = saggar_api::schema::KeyId, Path, description = "The key")),
    responses((status = 204, description = "It is worth nothing any more")),
)]
pub(crate) async fn revoke(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    PathId(key): PathId<KeyId>,
) -> Result<StatusCode, Refusal> {
    server.sandboxes.revoke_key(&allowed.permit, &key).await?;
    server.keys.forget(&key);
    Ok(StatusCode::NO_CONTENT)
}
