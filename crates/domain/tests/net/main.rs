//! Network rules through the crate's public face: hosts, addresses, the grammar, decisions, sets, and properties of all.
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod addresses;
mod bound;
mod decisions;
mod documents;
mod grammar;
mod hosts;
mod paths;
mod properties;
mod sets;
mod talk;
