//! From a command line to an exit status: the runtime, the client, the command, and what is said when it fails.

use std::io::Write;
use std::process::ExitCode;

use saggar_api::client::Client;
use serde::Serialize;

use super::arguments::{KeyArguments, SandboxArguments, SandboxCommand, ServerArguments};
use super::failure::Failure;
use super::{copy, exec, keys, lifecycle, logs, settings, shell};

/// `saggar sandbox`.
pub(crate) fn sandbox(arguments: SandboxArguments) -> ExitCode {
    let is_json = arguments.server.json;
    start(&arguments.server, async |client| match arguments.command {
        SandboxCommand::Create(create) => lifecycle::create(&client, *create, is_json).await,
        SandboxCommand::List(list) => lifecycle::list(&client, list, is_json).await,
        SandboxCommand::Show { sandbox } => lifecycle::show(&client, sandbox, is_json).await,
        SandboxCommand::Exec(arguments) => exec::main(&client, *arguments, is_json).await,
        SandboxCommand::Shell(arguments) => shell::main(&client, arguments).await,
        SandboxCommand::Cp { from, to, user } => copy::main(&client, from, to, user, is_json).await,
        SandboxCommand::Logs { sandbox, exec, follow } => {
            logs::main(&client, sandbox, exec, if follow { logs::Until::Ended } else { logs::Until::Now }, is_json)
                .await
        }
        SandboxCommand::Watch { sandbox, path, recursive } => {
            logs::watch(&client, sandbox, path, recursive, is_json).await
        }
        SandboxCommand::Pause { sandboxes } => lifecycle::pause(&client, sandboxes, is_json).await,
        SandboxCommand::Resume { sandboxes, ttl } => lifecycle::resume(&client, sandboxes, ttl, is_json).await,
        SandboxCommand::Kill { sandboxes } => lifecycle::kill(&client, sandboxes, is_json).await,
    })
}

/// `saggar key`.
pub(crate) fn key(arguments: KeyArguments) -> ExitCode {
    let is_json = arguments.server.json;
    start(&arguments.server, async |client| keys::main(&client, arguments.command, is_json).await)
}

/// What a command says at its end: an exit status, 0 for most.
pub(crate) type Outcome = Result<u8, Failure>;

fn start(server: &ServerArguments, command: impl AsyncFnOnce(Client) -> Outcome) -> ExitCode {
    let outcome =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::from).and_then(|runtime| {
            let outcome = runtime.block_on(async { command(settings::client(server)?).await });
            // A thread may still be waiting for our stdin, and has nothing left to do.
            runtime.shutdown_background();
            outcome
        });
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            // The exit status says it too, should nobody read this.
            let _ = match server.json {
                true => std::io::stdout().write_all(failure.json().as_bytes()),
                false => std::io::stderr().write_all(failure.text().as_bytes()),
            };
            ExitCode::from(failure.status())
        }
    }
}

/// One object on one line.
pub(crate) fn print_json(value: &impl Serialize) -> Result<(), Failure> {
    let mut line = serde_json::to_vec(value).map_err(|error| Failure::ours("internal", error.to_string(), ""))?;
    line.push(b'\n');
    print(&line)
}

/// To stdout, at once.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush())?;
    Ok(())
}

/// To stderr, for people who watch.
pub(crate) fn note(text: &str) {
    // Nothing is left to do if even this can't be printed.
    let _ = writeln!(std::io::stderr(), "saggar: {text}");
}
