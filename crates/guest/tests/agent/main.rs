//! The agent, driven from outside as the host drives it. Needs root, like the agent of a sandbox with a range of users.

#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod descriptors;
mod files;
mod host;
mod identity;
mod lifecycle;
mod port;
mod programs;
mod streams;
mod trees;
mod windows;
