//! Measures a release binary from outside, as a client would: `cargo measure <what>`.
//!
//! It depends on no other crate of ours. It starts `saggar`, talks HTTP to it and reads `/proc`, so it can measure any version.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

mod bench;
mod compare;
mod document;
mod http;
mod ledger;
mod machine;
mod patience;
mod processes;
mod provider;
mod runs;
mod serving;
mod signal;
mod soak;
mod workplace;

const USAGE: &str = "\
usage: cargo measure <what>

what:
  bench    the cost of sandboxes, durable runs and model calls, side by side with their peers (bench --help)
  soak     thousands of sandboxes and killed servers: is anything left behind or lost? (soak --help)
  compare  the portable half of the conformance suite on other runtimes (compare --help)
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["bench", options @ ..] => bench::run(options),
        ["soak", options @ ..] => soak::run(options),
        ["compare", options @ ..] => compare::run(options),
        [bench::egress::CHORE, options @ ..] => bench::egress::inside(options),
        [provider::CHORE] => provider::serve_alone().map(|()| ExitCode::SUCCESS),
        [ledger::CHORE] => ledger::serve_alone().map(|()| ExitCode::SUCCESS),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            eprint!("{USAGE}");
            Ok(ExitCode::from(2))
        }
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// The root of the repository, which has the documents that results are written to.
fn repository() -> anyhow::Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .context("the crate lies two directories below the repository")
}
