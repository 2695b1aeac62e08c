//! E2B's REST API for sandboxes: every route that its clients know, implemented or refused as unsupported.

mod builds;
mod create;
mod egress;
mod info;
mod life;
mod list;
mod logs;
mod network;
mod not_yet;
mod snapshots;
mod templates;
mod volume_content;
mod volumes;
mod words;

use axum::Router;
use axum::middleware::from_fn;
use axum::routing::{any, get, patch, post, put};
use saggar_http::attend;

use super::envd;
use crate::state::Shared;

/// The control plane, and the parts of the data plane that work without the name of a sandbox.
pub fn router() -> Router<Shared> {
    let control = Router::new()
        .route("/sandboxes", post(create::create_as_before).get(list::list_running))
        .route("/v2/sandboxes", post(create::create).get(list::list))
        .route("/sandboxes/metrics", get(info::metrics_of_many))
        .route("/sandboxes/{short}", get(info::get).delete(life::kill))
        .route("/sandboxes/{short}/connect", post(life::connect))
        .route("/v2/sandboxes/{short}/connect", post(life::connect))
        .route("/sandboxes/{short}/resume", post(life::resume))
        .route("/sandboxes/{short}/refreshes", post(life::refresh))
        .route("/sandboxes/{short}/timeout", post(life::set_timeout))
        .route("/sandboxes/{short}/pause", post(life::pause))
        .route("/sandboxes/{short}/network", put(network::update))
        .route("/sandboxes/{short}/metrics", get(info::metrics))
        .route("/sandboxes/{short}/logs", get(logs::logs))
        .route("/v2/sandboxes/{short}/logs", get(logs::logs_again))
        .route("/sandboxes/{short}/snapshots", post(snapshots::take))
        .route("/sandboxes/{short}/fork", post(snapshots::fork))
        .route("/snapshots", get(snapshots::list))
        .route("/default-templates", get(not_yet::templates))
        .route("/templates", get(templates::list).post(not_yet::templates))
        .route("/v2/templates", get(templates::list).post(not_yet::templates))
        .route("/v3/templates", post(builds::announce))
        .route("/templates/aliases/{*alias}", get(templates::alias))
        .route("/templates/tags", post(templates::assign_tags).delete(templates::remove_tags))
        .route("/templates/{template}", get(templates::get).delete(templates::remove).patch(not_yet::templates))
        .route("/v2/templates/{template}", patch(not_yet::templates))
        .route("/templates/{template}/tags", get(templates::tags))
        .route("/templates/{template}/tags/count", get(templates::count_tags))
        .route("/templates/{template}/tags/exists", get(templates::tag_exists))
        .route("/templates/{template}/tags/groups", get(not_yet::templates))
        .route("/templates/{template}/tags/{tag}/assignments", get(not_yet::templates))
        .route("/templates/{template}/files/{hash}", get(builds::files))
        .route("/templates/{template}/builds/{build}/status", get(builds::status))
        .route("/templates/{template}/builds/{build}/logs", get(builds::logs))
        .route("/v2/templates/{template}/builds/{build}", post(builds::begin))
        .route("/volumes", get(volumes::list).post(volumes::create))
        .route("/volumes/{volume}", get(volumes::get).delete(volumes::destroy))
        .route("/volumecontent/{volume}/{part}", any(volume_content::answer))
        .route("/secrets", any(not_yet::secrets))
        .route("/secrets/{*rest}", any(not_yet::secrets))
        .route("/teams", get(not_yet::teams))
        .route("/teams/{*rest}", any(not_yet::teams))
        .route("/api-keys", any(not_yet::teams))
        .route("/api-keys/{*rest}", any(not_yet::teams))
        .route_layer(from_fn(attend::within_bounds))
        .route_layer(from_fn(words::translate));
    control
        .route("/templates/{template}/files/{hash}", put(builds::upload))
        .route("/files", any(envd::unnamed))
        .route("/process.Process/{rpc}", any(envd::unnamed))
        .route("/filesystem.Filesystem/{rpc}", any(envd::unnamed))
}
