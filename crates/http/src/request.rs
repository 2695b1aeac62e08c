//! A request from its first header to the last byte of its answer.

mod access_log;
pub mod attend;
pub mod context;
pub mod extract;
pub mod host;
mod idempotency;
mod unread;

pub use idempotency::idempotency;
