//! Chores of this repository, in Rust instead of shell: `cargo xtask <chore>`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

mod pack;
mod tidy;

const USAGE: &str = "\
usage: cargo xtask <chore>

chores:
  tidy                     check the house rules that neither rustc nor clippy can
  pack FRONT FULL OUTPUT   put the full program behind the front: the one file that ships
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["tidy"] => tidy::run(),
        ["pack", front, full, output] => pack::run(front, full, output),
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
