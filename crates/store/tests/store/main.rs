//! The store through its public face: what it promises, and what it does when the machine doesn't keep its own promises.
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
mod opening;
mod restored;
mod runs;
mod sandboxes;
mod stuck;
mod sweep;
