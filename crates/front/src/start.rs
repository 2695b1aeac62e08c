//! Where every start begins: does what is for the front, and continues as the full program for the rest.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::process::ExitCode;

use saggar_domain::{Code, Problem};
use saggar_payload::{Damaged, Payload};

use crate::args::{self, Command};
use crate::outcome::{OUR_FAILURE, problem_text};

/// The whole of the front.
pub fn start() -> ExitCode {
    end_with_a_panic();
    let mut words = std::env::args_os().skip(1);
    let (first, second) = (words.next(), words.next());
    let mode = first.as_deref().unwrap_or_default();
    if let Some(code) = helper_mode(mode) {
        return code;
    }
    if second.is_none() && (mode == "--version" || mode == "-V") {
        let printed = writeln!(std::io::stdout(), "saggar {}", env!("CARGO_PKG_VERSION"));
        return printed.map_or(ExitCode::from(OUR_FAILURE), |()| ExitCode::SUCCESS);
    }
    let is_ours = mode == "run" || mode == "doctor";
    match is_ours.then(args::parse).flatten() {
        Some(Command::Run(arguments)) => crate::run(*arguments),
        Some(Command::Doctor(arguments)) => crate::doctor(&arguments),
        None => continue_as_full(),
    }
}

/// Carries out a mode in which `saggar` starts itself for one sandbox or one trial.
pub fn helper_mode(mode: &OsStr) -> Option<ExitCode> {
    if mode == saggar_sandbox::SUPERVISE {
        return Some(saggar_sandbox::supervise());
    }
    if mode == saggar_sandbox::KVM_TRIAL {
        saggar_sandbox::measure_kvm();
        return Some(ExitCode::SUCCESS);
    }
    None
}

/// A panic ends the process where it happens. Nothing is unwound, no lock is released, and no cleanup runs on state
/// that may be inconsistent. The reaper finds leftovers by their records. Only the server recovers from some panics.
pub fn end_with_a_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        tell(info);
        std::process::abort();
    }));
}

fn continue_as_full() -> ExitCode {
    let problem = match full_program() {
        Ok(payload) => match payload.take_over() {
            Ok(never) => match never {},
            Err(error) => incomplete(&error),
        },
        Err(problem) => problem,
    };
    eprint!("{}", problem_text(&problem));
    ExitCode::from(OUR_FAILURE)
}

/// Opened through the process, not by name: a file that was replaced meanwhile is another build.
fn full_program() -> Result<Payload, Problem> {
    let file = File::open("/proc/self/exe").map_err(|error| unreadable(&error))?;
    match Payload::carried_by(file) {
        Err(Damaged::NoTrailer) if cfg!(debug_assertions) => beside(),
        carried => carried.map_err(|error| incomplete(&error)),
    }
}

/// In a build for development the full program is a file of its own. A release never looks there: it may lie where others can write.
fn beside() -> Result<Payload, Problem> {
    let found = std::env::current_exe().ok().and_then(|program| File::open(program.with_file_name("saggar-full")).ok());
    let file = found.ok_or_else(|| incomplete(&Damaged::NoTrailer))?;
    Payload::whole(file).map_err(|error| incomplete(&error))
}

/// The kernel starts a program that its user may execute but not read. The rest of the file has to be read.
fn unreadable(error: &std::io::Error) -> Problem {
    let help = match error.kind() {
        std::io::ErrorKind::PermissionDenied => "let this user read the file too, for example with: chmod a+r",
        _ => "mount /proc; saggar finds its own file there",
    };
    let why = format!("this command is in a part of saggar's file that can't be read: {}", error.kind());
    Problem::new(Code::SetupFailed, why, help)
}

/// `run`, `doctor` and `--version` are there even so.
fn incomplete(error: &dyn std::error::Error) -> Problem {
    let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
    Problem::new(
        Code::SetupFailed,
        format!("this file of saggar is incomplete or damaged: {error}{source}"),
        "copy the whole file again, or build it with `make build`; only `run`, `doctor` and `--version` work without the rest",
    )
}
