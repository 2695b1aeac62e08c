//! `saggar serve`, and the commands that care for its data: `saggar backup` and `saggar restore`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use saggar_domain::{Code, Problem};
use saggar_server::{BackupError, Config, ServeError};

use crate::outcome::{OUR_FAILURE, problem_text};
use crate::settings::{DataFlags, SettingFlags, refused};

/// Stacks of worker threads: handlers are flat, and what is deep is on the heap.
const STACK_BYTES: usize = 1 << 20;

/// `saggar serve`.
#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 when it was told to stop, 125 when it could not start.")]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    settings: SettingFlags,
}

/// `saggar backup` and `saggar restore`.
#[derive(Args, Debug)]
pub(crate) struct CopyArguments {
    /// The backup
    file: PathBuf,
    #[command(flatten)]
    data: DataFlags,
}

/// Serves until told to stop.
pub(crate) fn main(arguments: &ServeArguments) -> ExitCode {
    let config = match arguments.settings.load() {
        Ok(config) => config,
        Err(error) => return refused(&error),
    };
    saggar_server::start_logs(&config);
    saggar_server::contain_panics();
    match run(config, saggar_server::serve) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => failed(&problem),
    }
}

/// Drives runs beside a server until told to stop.
pub(crate) fn worker(arguments: &ServeArguments) -> ExitCode {
    let config = match arguments.settings.load() {
        Ok(config) => config,
        Err(error) => return refused(&error),
    };
    saggar_server::start_logs(&config);
    match run(config, saggar_server::work) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => failed(&problem),
    }
}

fn run<F: Future<Output = Result<(), ServeError>>>(
    config: Config,
    main: impl FnOnce(Config, PathBuf) -> F,
) -> Result<(), Problem> {
    let system = |error: std::io::Error| {
        Problem::new(
            Code::SetupFailed,
            format!("the server can't start: {error}"),
            "look at the limits of this process",
        )
    };
    raise_descriptors();
    let program = std::env::current_exe().map_err(system)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("saggar")
        .thread_stack_size(STACK_BYTES)
        .build()
        .map_err(system)?;
    let outcome = runtime.block_on(main(config, program));
    // Every sandbox and everything acknowledged is safe by now; what still runs here is not waited for.
    runtime.shutdown_background();
    outcome.map_err(|error| Problem::new(Code::SetupFailed, error.to_string(), error.help()))
}

/// As many open files as we may have: each sandbox and each connection takes some.
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With fewer it works too, for fewer.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Copies the store of a data directory to a file, whether or not a server runs.
pub(crate) fn backup(arguments: &CopyArguments) -> ExitCode {
    copy(arguments, |config, file| {
        saggar_server::backup(&config.data_directory, file, std::time::SystemTime::now().into())?;
        let beside = saggar_server::files_beside_the_store(&config.data_directory);
        if !beside.is_empty() {
            eprintln!(
                "saggar: the backup does not hold {}: copy them beside it with mode 0600, or signed addresses, access tokens and the pinned certificate are worth nothing after a restore",
                beside.join(", ")
            );
        }
        Ok(())
    })
}

/// Makes a backup the store of a data directory that has none.
pub(crate) fn restore(arguments: &CopyArguments) -> ExitCode {
    copy(arguments, |config, file| saggar_server::restore(file, &config.data_directory))
}

fn copy(arguments: &CopyArguments, work: impl Fn(&Config, &std::path::Path) -> Result<(), BackupError>) -> ExitCode {
    let config = match arguments.data.load() {
        Ok(config) => config,
        Err(error) => return refused(&error),
    };
    match work(&config, &arguments.file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&Problem::new(Code::DataDirectory, error.to_string(), error.help())),
    }
}

fn failed(problem: &Problem) -> ExitCode {
    eprint!("{}", problem_text(problem));
    ExitCode::from(OUR_FAILURE)
}
