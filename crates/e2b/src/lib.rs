//! The E2B wire protocol: translates the requests of E2B's clients into operations of the runtime, and the results
//! back.
//!
//! Like E2B it has two planes: REST for sandboxes (`control`) and the protocol of the in-sandbox agent `envd`
//! (`envd`: Connect with JSON, and plain HTTP for files). Nothing is decided here, and only per-connection state is
//! kept: the lifecycle, execs, files and ports are the runtime's, the same that our own API uses. Unsupported
//! features are refused with messages that those clients show.

#![forbid(unsafe_code)]

mod connect;
mod control;
mod envd;
mod failure;
mod filesystem;
mod form;
mod id;
mod interpreter;
mod metrics;
mod object;
mod process;
mod routing;
mod state;
mod token;
mod transfer;

pub use control::router;
pub use routing::{Aim, aim, serve};
pub use state::{E2b, Shared};
