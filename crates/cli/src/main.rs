//! The one binary: `saggar`.
#![forbid(unsafe_code)]

mod args;
mod doctor;
mod events;
mod outcome;
mod run;
mod spec_file;
mod streams;
mod terminal;

use std::process::ExitCode;

fn main() -> ExitCode {
    match args::parse() {
        Ok(args::Command::Run(arguments)) => run::main(*arguments),
        Ok(args::Command::Doctor(arguments)) => doctor::main(&arguments),
        Err(code) => code,
    }
}
