//! The full program: every command. It is carried by the front (`crates/front/src/main.rs`), which continues as this one for whatever it doesn't do itself.
//! Started by its own name, for a debugger or a profiler, it does everything alone.
#![forbid(unsafe_code)]

mod args;
mod changes;
mod check;
mod fixture;
mod hints;
mod manual;
mod net;
mod probe;
mod remote;
mod serve;
mod settings;
mod template;
mod volume;

use std::process::ExitCode;

use saggar_front::{joint, outcome, streams, terminal};

#[global_allocator]
static ALLOCATOR: saggar_sandbox::Allocator = saggar_sandbox::Allocator;

fn main() -> ExitCode {
    saggar_front::end_with_a_panic();
    // Helper modes run before anything else is set up.
    let mode = std::env::args_os().nth(1).unwrap_or_default();
    if let Some(code) = saggar_front::helper_mode(&mode) {
        return code;
    }
    if mode == saggar_sandbox::EGRESS {
        return egress();
    }
    if mode == saggar_build::BUILD {
        return template::build_process();
    }
    if mode == saggar_conformance::WORKER_MODE {
        return match saggar_conformance::serve() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: a worker of the probe ended: {error}");
                ExitCode::from(outcome::OUR_FAILURE)
            }
        };
    }
    match args::parse() {
        Ok(args::Command::Run(arguments)) => saggar_front::run(*arguments),
        Ok(args::Command::Doctor(arguments)) => saggar_front::doctor(&arguments.0),
        Ok(args::Command::Probe(arguments)) => probe::main(&arguments.0),
        Ok(args::Command::Net(arguments)) => net::main(*arguments.0),
        Ok(args::Command::Changes(arguments)) => changes::main(*arguments.0),
        Ok(args::Command::Template(arguments)) => template::main(*arguments.0),
        Ok(args::Command::Volume(arguments)) => volume::main(*arguments.0),
        Ok(args::Command::Serve(arguments)) => serve::main(&arguments.0),
        Ok(args::Command::Config(arguments)) => settings::main(*arguments.0),
        Ok(args::Command::Backup(arguments)) => serve::backup(&arguments.0),
        Ok(args::Command::Restore(arguments)) => serve::restore(&arguments.0),
        Ok(args::Command::Check(arguments)) => check::main(&arguments.0),
        Ok(args::Command::Sandbox(arguments)) => remote::sandbox(*arguments.0),
        Ok(args::Command::Agent(arguments)) => remote::agent(*arguments.0),
        Ok(args::Command::Snapshot(arguments)) => remote::snapshot(*arguments.0),
        Ok(args::Command::Code(arguments)) => remote::code(*arguments.0),
        Ok(args::Command::Runs(arguments)) => remote::runs(*arguments.0),
        Ok(args::Command::Test(arguments)) => fixture::main(&arguments.0),
        Ok(args::Command::Worker(arguments)) => serve::worker(&arguments.0),
        Ok(args::Command::Key(arguments)) => remote::key(*arguments.0),
        Ok(args::Command::Secret(arguments)) => remote::secret(*arguments.0),
        Ok(args::Command::Models(arguments)) => remote::models(*arguments.0),
        Ok(args::Command::Completions(arguments)) => manual::completions(&arguments.0),
        Ok(args::Command::Man(arguments)) => manual::pages(&arguments.0),
        Err(code) => code,
    }
}

/// The egress process: of one sandbox, `__egress [UID]`, or of the sandboxes of a server, `__egress service DATA`.
fn egress() -> ExitCode {
    use saggar_egress::process::{self, Mode};
    let mut rest = std::env::args_os().skip(2).peekable();
    if rest.next_if(|word| word == saggar_sandbox::EGRESS_SERVICE).is_some() {
        let data = rest.next().unwrap_or_default();
        return match saggar_sandbox::ServiceProcess::begin(std::path::Path::new(&data)) {
            Ok(service) => process::main(Mode::Service, service.user()),
            Err(problem) => {
                process::tell(Mode::Service, problem);
                ExitCode::from(outcome::OUR_FAILURE)
            }
        };
    }
    match rest.next().map(|id| id.to_str().and_then(|id| id.parse().ok()).ok_or(())).transpose() {
        Ok(user) => process::main(Mode::Session, user),
        // Never as root instead of that user.
        Err(()) => ExitCode::from(outcome::OUR_FAILURE),
    }
}
