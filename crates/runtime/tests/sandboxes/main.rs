//! The lifecycle of sandboxes over supervisors that are not there: what a server does when one of them, or the server itself, fails
//! between any two steps.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod adopt;
mod create;
mod deaths;
mod fake;
mod network;
mod pool;
mod server;
