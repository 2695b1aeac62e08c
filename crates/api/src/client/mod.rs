//! A client for the API: every endpoint as a typed call.
//!
//! Cheap to clone; connections are pooled. Calls may be cancelled at any await: the server then completes the request
//! or not, and nothing is left half-done on this side. Only idempotent calls whose connection was refused are
//! retried.

mod answer;
mod attach;
mod body;
mod certificate;
mod changes;
mod code;
mod connect;
mod dial;
mod error;
mod events;
mod execs;
mod files;
mod follow;
mod keys;
mod models;
mod options;
mod resuming;
mod retry;
mod runs;
mod sandboxes;
mod secrets;
mod send;
mod snapshots;
mod templates;
mod volumes;

pub use attach::{AttachMessage, AttachReader, AttachWriter, Attached};
pub use body::Download;
pub use certificate::CertificateFault;
pub use code::CodeStream;
pub use error::Error;
pub use events::{FileWatch, SandboxEvents};
pub use execs::ExecHandle;
pub use follow::ExecStream;
pub use options::ClientOptions;
pub use runs::{Heard, RunEntries, RunHandle};
pub use sandboxes::SandboxHandle;
pub use send::Client;
