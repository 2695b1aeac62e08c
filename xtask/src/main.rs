//! Chores of this repository, in Rust instead of shell: `cargo xtask <chore>`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

mod tidy;

const USAGE: &str = "\
usage: cargo xtask <chore>

chores:
  tidy    check the house rules that neither rustc nor clippy can
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["tidy"] => tidy::run(),
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
