//! The E2B wire: what the clients of E2B say, translated into what the runtime does, and back.
//!
//! Two planes, as there: REST about sandboxes (`control`) and, for what goes on in one, the protocol of its agent `envd` (`envd`: Connect
//! with JSON, and plain HTTP for files). Nothing is decided here and nothing is kept but what a connection needs: the lifecycle, execs,
//! files and ports are the runtime's, and the same that our own API uses. What isn't built is refused in words that those clients show.

#![forbid(unsafe_code)]

mod connect;
mod control;
mod envd;
mod failure;
mod filesystem;
mod form;
mod id;
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
