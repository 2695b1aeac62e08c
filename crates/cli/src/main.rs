//! The one binary: `saggar`.
#![forbid(unsafe_code)]

mod args;
mod changes;
mod check;
mod doctor;
mod events;
mod fixture;
mod joint;
mod manual;
mod outcome;
mod probe;
mod remote;
mod run;
mod serve;
mod settings;
mod spec_file;
mod streams;
mod terminal;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: saggar_sandbox::Allocator = saggar_sandbox::Allocator;

fn main() -> ExitCode {
    end_with_a_panic();
    // Helper modes come before anything else is set up.
    if std::env::args_os().nth(1).is_some_and(|mode| mode == saggar_sandbox::KVM_TRIAL) {
        saggar_sandbox::measure_kvm();
        return ExitCode::SUCCESS;
    }
    if std::env::args_os().nth(1).is_some_and(|mode| mode == saggar_sandbox::SUPERVISE) {
        return saggar_sandbox::supervise();
    }
    if std::env::args_os().nth(1).is_some_and(|mode| mode == saggar_conformance::WORKER_MODE) {
        return match saggar_conformance::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: a worker of the probe ended: {error}");
                ExitCode::from(outcome::OUR_FAILURE)
            }
        };
    }
    match args::parse() {
        Ok(args::Command::Run(arguments)) => run::main(*arguments),
        Ok(args::Command::Doctor(arguments)) => doctor::main(&arguments.0),
        Ok(args::Command::Probe(arguments)) => probe::main(&arguments.0),
        Ok(args::Command::Changes(arguments)) => changes::main(*arguments.0),
        Ok(args::Command::Serve(arguments)) => serve::main(&arguments.0),
        Ok(args::Command::Config(arguments)) => settings::main(*arguments.0),
        Ok(args::Command::Backup(arguments)) => serve::backup(&arguments.0),
        Ok(args::Command::Restore(arguments)) => serve::restore(&arguments.0),
        Ok(args::Command::Check(arguments)) => check::main(&arguments.0),
        Ok(args::Command::Sandbox(arguments)) => remote::sandbox(*arguments.0),
        Ok(args::Command::Runs(arguments)) => remote::runs(*arguments.0),
        Ok(args::Command::Test(arguments)) => fixture::main(&arguments.0),
        Ok(args::Command::Worker(arguments)) => serve::worker(&arguments.0),
        Ok(args::Command::Key(arguments)) => remote::key(*arguments.0),
        Ok(args::Command::Completions(arguments)) => manual::completions(&arguments.0),
        Ok(args::Command::Man(arguments)) => manual::pages(&arguments.0),
        Err(code) => code,
    }
}

/// A panic ends the process where it happens: nothing is unwound, no lock let go of, and nothing cleaned up that isn't what it is taken for.
/// What is left is found by its record. The server alone lets some pass.
fn end_with_a_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tell(info);
        std::process::abort();
    }));
}
