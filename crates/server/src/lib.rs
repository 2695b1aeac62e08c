//! The server: sandboxes over the network.
//!
//! Reads requests, asks the runtime, writes answers. It decides nothing: who may is the runtime's `Permit`, made in one place
//! (`permitted`); what happens is the runtime's. What is here is HTTP: bounds, streams, archives, the way to a sandbox's ports.
#![forbid(unsafe_code)]

mod access_log;
mod archive;
mod attend;
mod config;
mod connections;
mod context;
mod e2b;
mod extract;
mod foreign;
mod given_file;
mod host;
mod idle;
mod keys;
mod listen;
mod logs;
mod offline;
mod openapi;
mod panics;
mod patience;
mod permitted;
mod ports;
mod reference;
mod refusal;
mod routes;
mod serve;
mod server;
mod signed;
mod sse;
mod tls;
mod unread;
mod wire;
mod wire_run;
mod work;

pub use config::{Auth, Config, ConfigError, E2bNetwork, Given, LogFormat, LogLevel, Origin, Plaintext, Shown, names};
pub use given_file::{GivenFileError, read_given_file, read_given_text};
pub use logs::start as start_logs;
pub use offline::create_key;
pub use openapi::{document as openapi, text as openapi_text};
pub use panics::contain_panics;
pub use reference::markdown as api_reference;
pub use saggar_runtime::runs::check_data_directory;
pub use saggar_runtime::store::{BackupError, Checked, accept_loss, backup, restore};
pub use serve::{ServeError, serve};
pub use tls::{TlsError, files_beside_the_store};
pub use work::{check_fixture, work};
