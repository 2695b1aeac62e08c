//! Chores of this repository, in Rust instead of shell: `cargo xtask <chore>`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

mod bench;
mod compare;
mod document;
mod http;
mod ledger;
mod machine;
mod patience;
mod processes;
mod runs;
mod serving;
mod signal;
mod soak;
mod tidy;
mod workplace;

const USAGE: &str = "\
usage: cargo xtask <chore>

chores:
  bench   measure what sandboxes and durable runs cost, side by side with their peers (bench --help)
  soak    make and end thousands of sandboxes, kill servers and workers, and see that nothing is left or lost (soak --help)
  compare try the portable half of the conformance suite on other runtimes (compare --help)
  tidy    check the house rules that neither rustc nor clippy can
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["bench", options @ ..] => bench::run(options),
        ["soak", options @ ..] => soak::run(options),
        ["compare", options @ ..] => compare::run(options),
        ["tidy"] => tidy::run(),
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
