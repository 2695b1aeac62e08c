//! The `saggar` binary.
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
mod spec_flags;
mod streams;
mod terminal;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: saggar_sandbox::Allocator = saggar_sandbox::Allocator;

fn main() -> ExitCode {
    end_with_a_panic();
    // Helper modes run before anything else is set up.
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

/// A panic ends the process where it happens. Nothing is unwound, no lock is released, and no cleanup runs on state
/// that may be inconsistent. The reaper finds leftovers by their records. Only the server recovers from some panics.
fn end_with_a_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tell(info);
        std::process::abort();
    }));
}
