//! The server: sandboxes and runs over HTTP.
//!
//! It parses requests, calls the runtime and writes responses. It decides nothing: authorisation is the runtime's
//! `Permit`, created in one place (`permitted`), and the operations are the runtime's. This crate has the HTTP parts:
//! limits, streams, archives, forwarding to a sandbox's ports.
#![forbid(unsafe_code)]

mod agents;
mod compose;
mod idle;
mod logs;
mod models;
mod native;
mod offline;
mod openapi;
mod reference;
mod serve;
mod server;
mod settings;
mod work;

pub use agents::{CheckedAgent, check_agent};
pub use logs::start as start_logs;
pub use offline::{create_key, has_store, rekey};
pub use openapi::{document as openapi, text as openapi_text};
pub use reference::markdown as api_reference;
pub use saggar_http::listen::contain_panics;
pub use saggar_http::listen::tls::{TlsError, files_beside_the_store};
pub use saggar_runtime::runs::check_data_directory;
pub use saggar_runtime::{KeyFile, OldKeys, Rekeyed};
pub use saggar_store::{BackupError, Checked, accept_loss, backup, restore};
pub use serve::{ServeError, serve};
pub use settings::{Config, ConfigError, Given, Origin, Shown, names};
pub use work::{check_fixture, work};
