//! Runs with real processes: workers are killed and stopped, and a ledger outside is the judge.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod children;
mod decide;
mod end;
mod inbox;
mod kills;
// Tests of the binary link it too, and each uses a part of it.
#[allow(dead_code)]
mod ledger;
mod let_go;
mod limits;
mod paused;
mod place;
mod refused;
mod room;
mod stale;
mod trust;
mod world;
