//! The HTTP kit: what both APIs, the native one and E2B's, need to answer requests over the runtime.
//!
//! Listening and its limits, TLS, the access log, extractors, problems, streams, authentication and permits, the
//! proxy for ports. It has no route of its own: an API provides its routes and its state, and [`request::attend`]
//! wraps all of them.
#![forbid(unsafe_code)]

pub mod access;
pub mod download;
mod gate;
mod keeping;
pub mod listen;
pub mod live;
pub mod ports;
mod refusal;
pub mod request;
pub mod sse;
pub mod wire;

pub use gate::{Gate, GateSettings, Shared};
pub use refusal::Refusal;
pub use request::{attend, context, extract, host};
