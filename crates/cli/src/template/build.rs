//! `saggar template build`, and the process that a server starts for one build.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{BufRead, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::SystemTime;

use clap::Args;
use rustix::event::Timespec;
use saggar_build::dockerfile::{self, Given};
use saggar_build::{Event, Failure, Log, Order, Recipe, Request};
use saggar_domain::{
    ByteSize, Code, Count, Cpus, Draft, DraftLimits, NetworkMode, Problem, Storage, TemplateName, Timeout, Timestamp,
};
use saggar_front::{RuleFlags, env_entry, network_mode, storage};
use saggar_image::Store;
use saggar_sandbox::{DataDirectory, Signals};
use serde_json::json;

use super::{Done, Unsuccessful, report, template_name};
use crate::outcome::{OUR_FAILURE, visible};
use crate::streams::write_all;

/// SIGHUP, SIGINT, SIGQUIT and SIGTERM cancel.
const SIGNALS: &[i32] = &[1, 2, 3, 15];
/// A step failed, or the build was cancelled.
const STEP_FAILED: u8 = 1;
/// Maximum size of a Dockerfile, of a recipe and of a request.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// How long each wait for a reader of our output may last. A step's deadline is not enforced meanwhile.
const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

#[derive(Args, Debug)]
pub(super) struct BuildArguments {
    /// Directory that COPY reads from
    #[arg(default_value = ".")]
    pub(super) context: PathBuf,
    /// Dockerfile, or recipe if it ends with .toml; `-` for a Dockerfile on stdin [default: CONTEXT/Dockerfile]
    #[arg(short, long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Name of the template
    #[arg(short = 't', long, value_name = "NAME[:TAG]", value_parser = template_name)]
    pub(super) name: TemplateName,
    /// Value of an ARG of the Dockerfile (repeatable)
    #[arg(long = "build-arg", value_name = "K=V", value_parser = env_entry)]
    pub(super) build_args: Vec<(String, String)>,
    /// Stage of the Dockerfile to end with [default: the last one]
    #[arg(long, value_name = "STAGE")]
    pub(super) target: Option<String>,
    /// Do every step anew
    #[arg(long)]
    pub(super) no_cache: bool,
    /// Network of each RUN: none, proxied (by the rules of --allow and --deny), or host (unmanaged) [default: none]
    #[arg(long = "net", visible_alias = "network", value_name = "MODE", value_parser = network_mode)]
    network: Option<NetworkMode>,
    #[command(flatten)]
    rules: RuleFlags,
    /// Time limit of each RUN [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = Timeout::parse, allow_hyphen_values = true)]
    timeout: Option<Timeout>,
    /// Memory limit of each RUN, what it changes included [default: 2G]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, allow_hyphen_values = true)]
    memory: Option<ByteSize>,
    /// CPU limit of each RUN, in CPUs [default: 2]
    #[arg(long, value_name = "N", value_parser = Cpus::parse, allow_hyphen_values = true)]
    cpus: Option<Cpus>,
    /// Maximum number of processes and threads of each RUN [default: 512]
    #[arg(long, value_name = "N", value_parser = Count::parse, allow_hyphen_values = true)]
    pids: Option<Count>,
    /// How much each RUN may change [default: 1G]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, allow_hyphen_values = true)]
    disk: Option<ByteSize>,
    /// Where changes are until the step is done: memory, or disk (needs root) [default: memory]
    #[arg(long, value_name = "PLACE", value_parser = storage)]
    storage: Option<Storage>,
    /// Maximum output of each RUN [default: 8M]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, allow_hyphen_values = true)]
    output: Option<ByteSize>,
    /// Maximum size of everything that the steps copy and write [default: 16G]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
    max_size: Option<ByteSize>,
    /// Maximum number of files, directories and others that they copy and write [default: 1000000]
    #[arg(long, value_name = "N")]
    max_entries: Option<u64>,
}

impl BuildArguments {
    /// A flag that says what a server's operator says for all builds.
    pub(super) fn setting_of_the_server(&self) -> Option<&'static str> {
        let given = [
            ("--net", self.network.is_some()),
            ("--allow and --deny", !self.rules.draft().is_empty()),
            ("--timeout", self.timeout.is_some()),
            ("--memory", self.memory.is_some()),
            ("--cpus", self.cpus.is_some()),
            ("--pids", self.pids.is_some()),
            ("--disk", self.disk.is_some()),
            ("--storage", self.storage.is_some()),
            ("--output", self.output.is_some()),
            ("--max-size", self.max_size.is_some()),
            ("--max-entries", self.max_entries.is_some()),
        ];
        given.into_iter().find_map(|(flag, is_given)| is_given.then_some(flag))
    }
}

pub(super) fn build(
    data: &DataDirectory,
    store: &Store,
    arguments: BuildArguments,
    is_json: bool,
) -> Result<Done, Unsuccessful> {
    let log = if is_json { Log::new(|_| {}) } else { progress() };
    // May wait for stdin, and then a signal must end it.
    let recipe = recipe(data, store, &arguments, &log)?;
    // From here on a signal only cancels, and never leaves anything half-made.
    let signals = block_signals()?;
    let order = Order {
        name: arguments.name,
        recipe,
        context: Some(arguments.context),
        contexts: BTreeMap::new(),
        published: Vec::new(),
        sandbox: Draft {
            network: arguments.network,
            egress: arguments.rules.draft(),
            storage: arguments.storage,
            limits: DraftLimits {
                timeout: arguments.timeout,
                memory: arguments.memory,
                cpus: arguments.cpus,
                pids: arguments.pids,
                disk: arguments.disk,
                output: arguments.output,
                ..DraftLimits::default()
            },
            ..Draft::default()
        },
        bytes_max: arguments.max_size.map(ByteSize::bytes),
        entries_max: arguments.max_entries,
        no_cache: arguments.no_cache,
        now: Timestamp::from(SystemTime::now()),
    };
    match saggar_build::build(data, store, &order, &signals, &log) {
        Ok(built) => Ok(report::built(&built)),
        Err(failure) => Err(unsuccessful(failure)),
    }
}

fn unsuccessful(failure: Failure) -> Unsuccessful {
    let code = if failure.problem.code == Code::BuildFailed { STEP_FAILED } else { OUR_FAILURE };
    let Failure { mut problem, step, line, exit_code, output, is_cancelled } = failure;
    let fields = json!({
        "step": step, "line": line, "exit_code": exit_code, "output": output, "is_cancelled": is_cancelled,
    });
    if !output.is_empty() && !is_cancelled {
        problem.message = format!("{}\n  its last output:\n    {}", problem.message, output.join("\n    "));
    }
    Unsuccessful { problem, fields, code }
}

fn recipe(data: &DataDirectory, store: &Store, arguments: &BuildArguments, log: &Log) -> Result<Recipe, Problem> {
    let file = arguments.file.clone().unwrap_or_else(|| arguments.context.join("Dockerfile"));
    let text = text_of(&file)?;
    if file.extension().is_some_and(|extension| extension == "toml") {
        return Recipe::from_toml(&text);
    }
    let args = arguments.build_args.iter().cloned().collect();
    let env_of = |name: &str| saggar_build::template_env(data, store, &[], name);
    let given = Given { args: &args, target: arguments.target.as_deref(), env_of: &env_of };
    let parsed = dockerfile::read(&text, given)?;
    for notice in parsed.notices {
        log.write(Event::Notice { line: Some(notice.line), text: notice.text });
    }
    Ok(parsed.recipe)
}

pub(super) fn text_of(file: &Path) -> Result<String, Problem> {
    if file == Path::new("-") {
        return stdin();
    }
    saggar_given::read_given_text(file, FILE_BYTES_MAX).map_err(|error| {
        let name = file.display().to_string();
        Problem::new(
            Code::InvalidValue,
            format!("the file {name:?} {error}"),
            format!("{}; name another with -f", error.help()),
        )
    })
}

fn stdin() -> Result<String, Problem> {
    let mut text = String::new();
    let read = std::io::stdin().take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
    match read {
        Ok(length) if length as u64 <= FILE_BYTES_MAX => Ok(text),
        Ok(_) | Err(_) => {
            Err(Problem::new(Code::InvalidStdin, "what is on stdin can't be read", "pass text of at most 4 MiB"))
        }
    }
}

/// Not buffered: whatever follows is not ours.
fn line_of_stdin() -> Result<String, Problem> {
    let wrong = || Problem::new(Code::InvalidStdin, "the request on stdin can't be read", "start the server again");
    let mut text = String::new();
    let stdin = std::io::stdin().lock();
    stdin.take(FILE_BYTES_MAX).read_line(&mut text).map_err(|_| wrong())?;
    if text.ends_with('\n') { Ok(text) } else { Err(wrong()) }
}

/// Signals, and the end of the server.
fn signals_of_server() -> Result<Signals, Problem> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    stdin
        .and_then(|stdin| Signals::block_while_open(SIGNALS, stdin))
        .map_err(|error| Problem::new(Code::SetupFailed, format!("signals can't be watched: {error}"), "try again"))
}

fn block_signals() -> Result<Signals, Problem> {
    Signals::block(SIGNALS)
        .map_err(|error| Problem::new(Code::SetupFailed, format!("signals can't be watched: {error}"), "try again"))
}

/// Writes what happens to stderr, for people.
fn progress() -> Log {
    let is_lost = Cell::new(false);
    let count = Cell::new(0);
    Log::new(move |event| {
        let line = match event {
            Event::Notice { line: Some(line), text } => format!("note: line {line}: {text}"),
            Event::Notice { line: None, text } => format!("note: {text}"),
            Event::Step { number, count: of, text, .. } => {
                count.set(of);
                format!("[{number}/{of}] {text}")
            }
            Event::Output { number, text, .. } => format!("[{number}/{}]   {text}", count.get()),
            Event::StepEnded { number, is_cached: true, .. } => format!("[{number}/{}] cached", count.get()),
            Event::StepEnded { .. } | Event::Built(_) | Event::Failed(_) => return,
        };
        let line = format!("{}\n", visible(&line.replace('\n', " ")));
        // The build goes on without a reader.
        if !is_lost.get() && write_all(std::io::stderr().as_fd(), line.as_bytes(), Some(PATIENCE)).is_err() {
            is_lost.set(true);
        }
    })
}

/// One build for a server: a request on stdin, in one line, and events on stdout. The server keeps the other end of stdin: when it is
/// closed, or nobody reads the events, the server is gone or hangs, and the build is cancelled.
pub(crate) fn process() -> ExitCode {
    let is_lost = Rc::new(Cell::new(false));
    let log = Log::new({
        let is_lost = Rc::clone(&is_lost);
        move |event| {
            let line = format!("{}\n", serde_json::to_string(&event).expect("our own types have only text keys"));
            if !is_lost.get() && write_all(std::io::stdout().as_fd(), line.as_bytes(), Some(PATIENCE)).is_err() {
                is_lost.set(true);
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::TERM).expect("a process may signal itself");
            }
        }
    });
    let attempt = || -> Result<_, Failure> {
        let request = Request::parse(&line_of_stdin()?)?;
        let signals = signals_of_server()?;
        let data = DataDirectory::open(Some(&request.data_dir))?;
        let store = Store::open(&data, &request.project)?;
        saggar_build::build(&data, &store, &request.order, &signals, &log)
    };
    match attempt() {
        Ok(built) => {
            log.write(Event::Built(built));
            ExitCode::SUCCESS
        }
        Err(failure) => {
            log.write(Event::Failed(failure));
            ExitCode::from(STEP_FAILED)
        }
    }
}
