//! Secrets at rest: what is stored, which keys open it, and what is left when a change of the key dies in the middle.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

mod key_file;
mod place;
mod rekey;
mod stored;
