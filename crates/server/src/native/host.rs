//! The server itself: whether it is there, what its host can give, what it can be asked.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use saggar_api::{Health, HealthStatus, route};
use saggar_http::Refusal;
use saggar_http::access::Known;

use super::resource::resource;
use crate::openapi::text;
use crate::server::Shared;

resource! {
    tag "server": "The server itself.";
    bounded {
        route::HEALTH => get health;
        route::CAPABILITIES => get capabilities;
    }
}

/// Whether the server takes requests
#[utoipa::path(
    get, path = "/health", tag = "server", operation_id = "health",
    responses((status = 200, description = "It does", body = Health)),
    security(()),
)]
pub(crate) async fn health(State(server): State<Shared>) -> axum::Json<Health> {
    let status = if server.is_stopping() { HealthStatus::Stopping } else { HealthStatus::Ok };
    axum::Json(Health { status, version: env!("CARGO_PKG_VERSION").to_owned() })
}

/// What this host can give, by trying it
///
/// The same as `saggar doctor --json` prints.
#[utoipa::path(
    get, path = "/api/v1/capabilities", tag = "server", operation_id = "capabilities",
    responses((status = 200, description = "Tiers, network modes, filesystem modes and limits, each with how far it can be relied on", body = serde_json::Value)),
)]
pub(crate) async fn capabilities(_known: Known, State(server): State<Shared>) -> Result<Response, Refusal> {
    let capabilities = server.capabilities.get_or_try_init(|| server.sandboxes.examine_host()).await?;
    Ok(axum::Json(capabilities).into_response())
}

/// The OpenAPI document. It holds nothing that isn't public, so it needs no key.
pub(crate) async fn openapi() -> Response {
    let mut response = text().into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
