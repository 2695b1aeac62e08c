//! The server: sandboxes over the network.
//!
//! Reads requests, asks the runtime, writes answers. It decides nothing: who may is the runtime's `Permit`, made in one place
//! (`permitted`); what happens is the runtime's. What is here is HTTP: bounds, streams, archives, the way to a sandbox's ports.
#![forbid(unsafe_code)]

mod compose;
mod logs;
mod native;
mod offline;
mod openapi;
mod reference;
mod serve;
mod server;
mod settings;
mod work;

pub use logs::start as start_logs;
pub use offline::create_key;
pub use openapi::{document as openapi, text as openapi_text};
pub use reference::markdown as api_reference;
pub use saggar_http::listen::contain_panics;
pub use saggar_http::listen::tls::{TlsError, files_beside_the_store};
pub use saggar_http::{GivenFileError, read_given_file, read_given_text};
pub use saggar_runtime::runs::check_data_directory;
pub use saggar_store::{BackupError, Checked, accept_loss, backup, restore};
pub use serve::{ServeError, serve};
pub use settings::{Config, ConfigError, Given, Origin, Shown, names};
pub use work::{check_fixture, work};
