//! `saggar serve` and `saggar worker`, and the commands for the server's data: `saggar backup` and `saggar restore`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use saggar_domain::{Code, Problem};
use saggar_server::{BackupError, Config, ServeError};

use crate::outcome::{OUR_FAILURE, problem_text};
use crate::settings::{DataFlags, SettingFlags, naming, refused};

/// Stack size of worker threads, in bytes. Handlers nest little, and large values are on the heap.
const STACK_BYTES: usize = 1 << 20;

#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 after a requested stop, 125 if it could not start.")]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    settings: SettingFlags,
}

#[derive(Args, Debug)]
pub(crate) struct CopyArguments {
    /// Path of the backup file
    file: PathBuf,
    #[command(flatten)]
    data: DataFlags,
}

/// Serves until a signal stops it.
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

/// Runs a worker until a signal stops it.
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
            "check the resource limits of this process",
        )
    };
    raise_descriptors();
    // Not by its name: an upgrade may have put another version there, which this server must not start supervisors from.
    let program = PathBuf::from("/proc/self/exe");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("saggar")
        .thread_stack_size(STACK_BYTES)
        .build()
        .map_err(system)?;
    let directory = config.data_directory().to_owned();
    let outcome = runtime.block_on(main(config, program));
    // All sandboxes and acknowledged writes are safe by now, so remaining tasks are not awaited.
    runtime.shutdown_background();
    outcome.map_err(|error| Problem::new(Code::SetupFailed, naming(&directory, &error.to_string()), error.help()))
}

/// Raises the limit of open files to the maximum: each sandbox and each connection uses some.
fn raise_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With a lower limit the server still works, for fewer clients.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Backs up the store of a data directory to a file, whether or not a server runs.
pub(crate) fn backup(arguments: &CopyArguments) -> ExitCode {
    copy(arguments, |config, file| {
        saggar_server::backup(config.data_directory(), file, std::time::SystemTime::now().into())?;
        let beside = saggar_server::files_beside_the_store(config.data_directory());
        if !beside.is_empty() {
            eprintln!(
                "saggar: the backup does not hold {}: copy them separately with mode 0600; without them, signed URLs, access tokens and the pinned certificate become invalid after a restore",
                beside.join(", ")
            );
        }
        Ok(())
    })
}

/// Restores a backup into a data directory that has no store.
pub(crate) fn restore(arguments: &CopyArguments) -> ExitCode {
    copy(arguments, |config, file| saggar_server::restore(file, config.data_directory()))
}

fn copy(arguments: &CopyArguments, work: impl Fn(&Config, &std::path::Path) -> Result<(), BackupError>) -> ExitCode {
    let config = match arguments.data.load() {
        Ok(config) => config,
        Err(error) => return refused(&error),
    };
    match work(&config, &arguments.file) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let message = naming(config.data_directory(), &error.to_string());
            failed(&Problem::new(Code::DataDirectory, message, error.help()))
        }
    }
}

fn failed(problem: &Problem) -> ExitCode {
    eprint!("{}", problem_text(problem));
    ExitCode::from(OUR_FAILURE)
}
