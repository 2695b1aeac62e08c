//! The network of a sandbox: replace its rules, and read what it did.

use axum::extract::State;
use saggar_api::{EffectiveEgress, Sandbox, SandboxNetwork, route};
use saggar_domain::NetworkMode;
use saggar_domain::net::EgressDraft;
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Change, Read};
use saggar_http::extract::Json;
use saggar_http::wire;

use super::resource::resource;
use crate::server::Shared;

resource! {
    bounded {
        route::EGRESS => put set_egress;
        route::NETWORK => get read;
    }
}

/// Replace a sandbox's network rules
///
/// When this responds, the new rules are in force, and connections that they forbid are cut. Without rules, everything is denied. The
/// sandbox's network mode must be `proxied`.
#[utoipa::path(
    put, path = "/api/v1/sandboxes/{id}/egress", tag = "sandboxes", operation_id = "setEgress",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    request_body = saggar_api::schema::EgressShape,
    responses((status = 200, description = "The sandbox with the rules in force", body = Sandbox)),
)]
pub(crate) async fn set_egress(
    allowed: Allowed<Change>,
    State(server): State<Shared>,
    Json(rules): Json<EgressDraft>,
) -> Result<axum::Json<Sandbox>, Refusal> {
    let row = server.sandboxes.set_egress(&allowed.permit, rules).await?;
    Ok(axum::Json(wire::sandbox(row, server.known_unenforced())?))
}

/// Read a sandbox's network rules, and sums of what it did with its network
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/network", tag = "sandboxes", operation_id = "getNetwork",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox")),
    responses((status = 200, description = "Its network", body = SandboxNetwork)),
)]
pub(crate) async fn read(
    allowed: Allowed<Read>,
    State(server): State<Shared>,
) -> Result<axum::Json<SandboxNetwork>, Refusal> {
    let (row, hosts) = server.sandboxes.traffic(&allowed.permit).await?;
    let network = row.asked.spec.network.unwrap_or(NetworkMode::None);
    let egress = EffectiveEgress::of(&row.asked.spec.egress, network);
    Ok(axum::Json(SandboxNetwork { network, egress, hosts }))
}
