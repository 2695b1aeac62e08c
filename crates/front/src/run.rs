//! `saggar run`: from a command line to an exit status.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::time::Instant;

use saggar_domain::{
    Code, EXEC_SCHEMA, EventBody, ExecResult, ExecStatus, FsMode, NetworkMode, NetworkReport, PolicyHash, Problem,
    Spec, Tier,
};
use saggar_sandbox::{Asker, DataDirectory, HeldTemplate, Ids, Job, Question, Report, Signals, policy_hash, reap};

use crate::args::RunArguments;
use crate::events::{EventLog, check_out_of_reach};
use crate::joint::{Joint, Wish};
use crate::outcome::{OUR_FAILURE, exit_status, has_run, print_json, print_notes, problem_text};
use crate::terminal::{self, HandedOver};
use crate::{ask, recording, secrets, spec_file, streams};

/// SIGHUP, SIGINT, SIGQUIT and SIGTERM cancel; SIGWINCH reports a new terminal size. While SIGTTIN and SIGTTOU are
/// blocked, a terminal that belongs to another job returns an error instead of stopping us, so the deadline stays
/// enforced.
const SIGNALS: &[i32] = &[1, 2, 3, 15, 21, 22, 28];

pub fn main(arguments: RunArguments) -> ExitCode {
    let start = Instant::now();
    let ids = match Ids::generate() {
        Ok(ids) => ids,
        Err(problem) => {
            eprint!("{}", problem_text(&problem));
            return ExitCode::from(OUR_FAILURE);
        }
    };
    let is_json = arguments.json;
    let data_dir = arguments.data_dir.clone();
    // Block signals first: until cleanup is complete, a signal only cancels, and never leaves anything half-made.
    let signals = Signals::block(SIGNALS);
    let result = execute(arguments, ids, start, signals.as_ref().map_err(std::io::Error::to_string));
    if let Ok(signals) = signals {
        // A signal that arrived after the end has nothing left to cancel. From here on signals have their default
        // action, in case printing hangs.
        while let Ok(Some(_)) = signals.next() {}
    }
    let printed = if is_json { print_json(&result) } else { Ok(()) };
    if !is_json {
        // Without a data directory nothing is remembered, so every note counts as new.
        print_notes(&result, |note| DataDirectory::open(data_dir.as_deref()).map_or(true, |data| data.is_news(note)));
    }
    match printed {
        Ok(()) => ExitCode::from(exit_status(&result)),
        Err(_) => ExitCode::from(OUR_FAILURE),
    }
}

/// Reports an invalid command line as JSON.
pub fn misused(complaint: &str) -> ExitCode {
    let first = complaint.split("\n\n").next().unwrap_or(complaint).trim_start_matches("error: ").trim_end();
    let problem = Problem::new(Code::InvalidValue, first.replace('\n', " "), "see `saggar run --help`");
    let shape = Shape { tier: Tier::Namespace, fs: FsMode::ReadOnly, network: NetworkMode::None, policy_hash: None };
    if let Ok(ids) = Ids::generate() {
        let report = Report::not_started(ExecStatus::SetupFailed, problem);
        // If this can't be printed, the exit status reports the same.
        let _ = print_json(&shape.result(&ids, report, Instant::now()));
    }
    ExitCode::from(OUR_FAILURE)
}

fn execute(arguments: RunArguments, ids: Ids, start: Instant, signals: Result<&Signals, String>) -> ExecResult {
    let resolved = spec_file::resolve(&arguments)
        .and_then(|(spec, template)| Ok((ask::with_answers(spec, &arguments)?, template)));
    let (spec, template) = match resolved {
        Ok((spec, template)) => (Ok(spec), template),
        Err(problem) => (Err(problem), None),
    };
    let wants_record = arguments.json || arguments.events.is_some();
    // Only a result as JSON and events have it. To hash takes longer than one would think: the first hash asks the processor what it
    // can do, and in a virtual machine the hypervisor answers that.
    let policy = spec.as_ref().ok().filter(|_| wants_record).map(policy_hash);
    let shape = Shape::of(spec.as_ref().ok(), policy.clone(), &arguments);
    // Check before opening, because opening creates the file.
    let is_out_of_reach =
        spec.as_ref().map_or(Ok(()), |spec| check_out_of_reach("events file", arguments.events.as_deref(), spec));
    let log =
        is_out_of_reach.and_then(|()| EventLog::open(arguments.events.as_deref(), arguments.json, ids.clone(), start));
    let mut log = match log {
        Ok(log) => log,
        Err(problem) => return shape.result(&ids, Report::not_started(ExecStatus::Refused, problem), start),
    };
    let outcome = spec.and_then(|spec| {
        let program = program(&arguments.program, template.as_ref())?;
        log.set_policy(policy);
        let signals = signals.map_err(|error| {
            Problem::new(Code::SetupFailed, format!("signals can't be watched: {error}"), "try again")
        })?;
        let data = DataDirectory::open(arguments.data_dir.as_deref())?;
        let joint = Joint::of(Wish { stdin: arguments.stdin.as_deref(), tty: arguments.tty, is_json: arguments.json });
        let streams = streams::open(arguments.json, &joint, &spec)?;
        let secrets = secrets::open(arguments.secrets.as_deref(), &spec)?;
        let tape = recording::tape(&arguments, &spec)?;
        Ok((spec, program, data, joint.terminal, streams, tape, secrets, signals))
    });
    let report = match outcome {
        Err(problem) => Report::not_started(ExecStatus::Refused, problem),
        Ok((spec, program, data, terminal, streams, tape, secrets, signals)) => {
            reap(&data);
            let mut desk = arguments.ask.then(|| ask::Desk::new(&spec, &data, signals));
            let mut ask = desk.as_mut().map(|desk| |question: &Question<'_>| desk.ask(question));
            let job = Job {
                spec,
                template,
                program,
                streams,
                terminal: terminal.map(|_| terminal::size()),
                terminal_name: terminal.map(|_| terminal::name()),
                wants_usage: wants_record,
                keeps_changes: true,
                hands_over_root: false,
                tape,
                secrets,
                asks: ask.as_mut().map(|ask| Asker(ask)),
                signals,
            };
            let mut terminal = terminal.map(HandedOver::begin);
            let report = saggar_sandbox::run(&data, &ids, job, &mut |body| log.write(body));
            if let Some(terminal) = terminal.as_mut().filter(|_| !has_run(report.status)) {
                terminal.was_not_used();
            }
            drop(terminal);
            report
        }
    };
    for denial in report.denials.iter().filter(|_| report.status == ExecStatus::Refused) {
        log.write(EventBody::Denial(denial.clone()));
    }
    log.write(EventBody::Finish {
        status: report.status,
        exit_code: report.exit_code,
        signal: report.signal,
        usage: report.usage,
        error: report.error.clone(),
    });
    let mut result = shape.result(&ids, report, start);
    result.error = result.error.or(log.failure());
    result
}

/// The program that was asked for, or else the template's own.
fn program(asked: &[OsString], template: Option<&HeldTemplate>) -> Result<Vec<Vec<u8>>, Problem> {
    let mut program: Vec<Vec<u8>> = asked.iter().cloned().map(OsStringExt::into_vec).collect();
    if let Some(template) = template.filter(|_| program.is_empty()) {
        let defaults = template.manifest.defaults();
        program = defaults.entrypoint.iter().chain(&defaults.command).map(|word| word.clone().into_bytes()).collect();
    }
    let why = match program.first() {
        Some(name) if !name.is_empty() => return Ok(program),
        Some(_) => "the program's name is empty",
        None => "no program is given, and the template has none of its own",
    };
    Err(Problem::new(Code::InvalidValue, why, "name a program after --"))
}

/// What a result says about the boundary, even if no sandbox was created.
struct Shape {
    tier: Tier,
    fs: FsMode,
    network: NetworkMode,
    policy_hash: Option<PolicyHash>,
}

impl Shape {
    fn of(spec: Option<&Spec>, policy_hash: Option<PolicyHash>, arguments: &RunArguments) -> Self {
        match spec {
            Some(spec) => Self { tier: spec.tier, fs: spec.fs, network: spec.network, policy_hash },
            None => Self {
                tier: arguments.tier.unwrap_or(Tier::Namespace),
                fs: arguments.fs.unwrap_or(FsMode::ReadOnly),
                network: arguments.spec_flags.network.unwrap_or(NetworkMode::None),
                policy_hash: None,
            },
        }
    }

    fn result(self, ids: &Ids, report: Report, start: Instant) -> ExecResult {
        ExecResult {
            schema: EXEC_SCHEMA,
            exec_id: ids.exec.clone(),
            sandbox_id: ids.sandbox.clone(),
            status: report.status,
            exit_code: report.exit_code,
            signal: report.signal,
            output: report.output,
            elapsed_ms: start.elapsed().as_millis() as u64,
            usage: report.usage,
            tier: self.tier,
            fs: self.fs,
            network: NetworkReport::from(self.network),
            unenforced: report.unenforced,
            policy_hash: self.policy_hash,
            denials: report.denials,
            changes_kept: report.changes_kept,
            traffic: report.traffic,
            error: report.error,
        }
    }
}
