//! The native API. One file per object, with a table of its routes; handlers only parse requests, call the runtime
//! once and write responses.

mod archive;
mod attach;
mod changes;
mod code;
mod content;
mod events;
mod exec_stream;
mod execs;
mod files;
mod host;
mod journal;
mod keys;
mod life;
mod network;
mod resource;
mod runs;
mod sandboxes;
mod secrets;
mod snapshots;
mod template_jobs;
mod templates;
mod tree;
mod volumes;
mod watch;
mod wire_run;

use axum::Router;
use axum::routing::{any, get};
use saggar_api::route;
use saggar_http::ports;
use utoipa::openapi::OpenApi;

use crate::server::Shared;
use resource::Resource;

pub(crate) use wire_run::agent as agent_spec;

/// Every resource, in the order of the documents.
fn resources() -> impl Iterator<Item = Resource> {
    [
        host::resource,
        sandboxes::resource,
        life::resource,
        network::resource,
        events::resource,
        execs::resource,
        exec_stream::resource,
        attach::resource,
        code::resource,
        files::resource,
        content::resource,
        watch::resource,
        changes::resource,
        tree::resource,
        runs::resource,
        journal::resource,
        keys::resource,
        snapshots::resource,
        secrets::resource,
        templates::resource,
        template_jobs::resource,
        volumes::resource,
    ]
    .into_iter()
    .map(|resource| resource())
}

/// Every route of the native API, and the routes of sandboxes' ports.
pub(crate) fn router() -> Router<Shared> {
    let router = resources().fold(Router::new(), |router, resource| router.merge(resource.router()));
    router
        .route(route::OPENAPI, get(host::openapi))
        .route(route::PORT, any(ports::by_path))
        .route(route::PORT_SLASH, any(ports::by_path))
        .route(route::PORT_PATH, any(ports::by_path))
}

/// Every operation, from the handlers' own descriptions.
pub(crate) fn document() -> OpenApi {
    resources().fold(OpenApi::default(), |document, resource| document.merge_from(resource.document()))
}
