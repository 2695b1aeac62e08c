//! The front of `saggar`: what starts. It links none of the crates that only the full program (`crates/cli/src/full.rs`) needs.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: saggar_sandbox::Allocator = saggar_sandbox::Allocator;

fn main() -> ExitCode {
    saggar_front::start()
}
