//! The store through its public interface: its guarantees, and its behaviour when the machine fails.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod backup;
mod crash;
mod damage;
mod fixture;
mod forgetting;
mod full;
mod golden;
mod history;
mod keys;
mod letters;
mod network;
mod opening;
mod restored;
mod reuse;
mod runs;
mod sandbox_calls;
mod sandboxes;
mod secrets;
mod spending;
mod stuck;
mod sweep;
mod taking;
