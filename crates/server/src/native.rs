//! Which handler is where. One file per object; handlers only read requests, call the runtime once and write answers.

mod archive;
mod attach;
mod content;
mod events;
mod exec_stream;
mod execs;
mod files;
mod host;
mod journal;
mod keys;
mod life;
mod runs;
mod sandboxes;
mod tree;
mod watch;
mod wire_run;

use axum::Router;
use axum::middleware::from_fn;
use axum::routing::{any, delete, get, post};
use saggar_api::route;
use saggar_http::attend;
use saggar_http::ports;

use crate::server::Shared;

pub(crate) use self::documented::Document;

/// Every route of the native API.
pub(crate) fn router() -> Router<Shared> {
    Router::new().merge(bounded()).merge(streaming())
}

/// What is answered within a bounded time.
fn bounded() -> Router<Shared> {
    Router::new()
        .route(route::HEALTH, get(host::health))
        .route(route::CAPABILITIES, get(host::capabilities))
        .route(route::OPENAPI, get(host::openapi))
        .route(route::SANDBOXES, post(sandboxes::create).get(sandboxes::list))
        .route(route::SANDBOX, get(sandboxes::get).patch(sandboxes::update).delete(sandboxes::end))
        .route(route::PAUSE, post(life::pause))
        .route(route::RESUME, post(life::resume))
        .route(route::TIMEOUT, post(life::set_timeout))
        .route(route::METRICS, get(life::metrics))
        .route(route::LOGS, get(events::logs))
        .route(route::EXEC, get(execs::get))
        .route(route::EXEC_SIGNAL, post(execs::signal))
        .route(route::EXEC_RESIZE, post(execs::resize))
        .route(route::FILES_STAT, get(files::stat))
        .route(route::FILES_LIST, get(files::list))
        .route(route::FILES_MKDIR, post(files::make_directory))
        .route(route::FILES_MOVE, post(files::move_file))
        .route(route::FILES_METADATA, get(files::metadata).put(files::set_metadata))
        .route(route::FILES_SIGN, post(files::sign))
        .route(route::KEYS, post(keys::create).get(keys::list))
        .route(route::KEY, delete(keys::revoke))
        .route(route::RUNS, post(runs::start).get(runs::list))
        .route(route::RUN, get(runs::get).delete(runs::remove))
        .route(route::RUN_SIGNAL, post(runs::signal))
        .route(route::RUN_PAUSE, post(runs::pause))
        .route(route::RUN_RESUME, post(runs::resume))
        .route(route::RUN_CANCEL, post(runs::cancel))
        .route(route::RUN_DECIDE, post(runs::decide))
        .route(route::RUN_FORK, post(runs::fork))
        .route(route::RUN_REPLAY, get(journal::replay))
        .route(route::RUN_EXPORT, get(journal::export))
        .route_layer(from_fn(attend::within_bounds))
}

/// What lasts as long as somebody sends or reads, each piece within a bounded time.
fn streaming() -> Router<Shared> {
    Router::new()
        .route(route::EVENTS, get(events::read))
        .route(route::RUN_JOURNAL, get(journal::read))
        .route(route::EXECS, post(execs::start).get(execs::list))
        .route(route::EXEC_STREAM, get(exec_stream::follow))
        .route(route::EXEC_STDIN, post(execs::stdin))
        .route(route::EXEC_ATTACH, get(attach::attach))
        .route(route::FILES, get(content::read).put(content::write).delete(files::remove))
        .route(route::FILES_WATCH, get(watch::watch))
        .route(route::FILES_TREE, get(tree::download).put(tree::upload))
        .route(route::PORT, any(ports::by_path))
        .route(route::PORT_SLASH, any(ports::by_path))
        .route(route::PORT_PATH, any(ports::by_path))
}

mod documented {
    use super::{
        attach, content, events, exec_stream, execs, files, host, journal, keys, life, runs, sandboxes, tree, watch,
    };

    /// Every operation, from the handlers' own descriptions.
    #[derive(utoipa::OpenApi)]
    #[openapi(paths(
        host::health,
        host::capabilities,
        sandboxes::create,
        sandboxes::list,
        sandboxes::get,
        sandboxes::update,
        sandboxes::end,
        life::pause,
        life::resume,
        life::set_timeout,
        life::metrics,
        events::read,
        events::logs,
        execs::start,
        execs::list,
        execs::get,
        execs::stdin,
        execs::signal,
        execs::resize,
        exec_stream::follow,
        attach::attach,
        content::read,
        content::write,
        files::remove,
        files::stat,
        files::list,
        files::make_directory,
        files::move_file,
        files::metadata,
        files::set_metadata,
        files::sign,
        watch::watch,
        tree::download,
        tree::upload,
        runs::start,
        runs::list,
        runs::get,
        journal::read,
        runs::signal,
        runs::pause,
        runs::resume,
        runs::cancel,
        runs::decide,
        runs::fork,
        runs::remove,
        journal::replay,
        journal::export,
        keys::create,
        keys::list,
        keys::revoke,
    ))]
    pub(crate) struct Document;
}
