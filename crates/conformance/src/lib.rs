//! The conformance suite: cases as data, an attacker that tries them inside a real sandbox, and a verdict for each.
//!
//! The data is in `conformance/` at the top of the repository and is part of the binary. A case says what is attempted
//! and what the required outcome is, by tier. The attacker knows no expectations, and the runner makes no system calls.
//! Besides its own expectation, every case must meet four conditions: events are in order, no output contains a host
//! path or secret, the end is orderly, and nothing is left behind.
#![forbid(unsafe_code)]

mod after;
mod attacker_image;
mod bench;
mod case;
mod check;
mod enact;
mod expect;
mod fixture;
mod outside;
mod removal;
mod report;
mod rules;
mod runner;
mod via;
mod worker;
mod world;

pub use case::{Case, cases, select};
pub use expect::{AttemptOutcome, Observation};
pub use report::{CaseResult, Summary, Verdict, markdown};
pub use rules::{Teeth, teeth};
pub use runner::{Options, probe};
pub use via::{Via, probe_via};
pub use worker::{WORKER_MODE, serve};
