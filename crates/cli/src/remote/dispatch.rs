//! From a parsed command line to an exit status: starts the runtime and the client, runs the command, and reports
//! failures.

use std::io::Write;
use std::process::ExitCode;

use saggar_api::PauseSandbox;
use saggar_api::client::Client;
use saggar_domain::RunId;
use serde::Serialize;

use crate::args::ChangesCommand;

use super::agent_arguments::{AgentArguments, AgentCommand};
use super::agent_run::RunRequest;
use super::arguments::{KeyArguments, KeyCommand, SandboxArguments, SandboxCommand, ServerArguments};
use super::code_arguments::CodeArguments;
use super::failure::CommandFailure;
use super::models::ModelArguments;
use super::net::NetTask;
use super::run_arguments::RunsArguments;
use super::secret_arguments::{SecretArguments, SecretCommand};
use super::snapshot_arguments::SnapshotArguments;
use super::templates::TemplateTask;
use super::{
    agent_commands, agent_run, copy, exec, keys, lifecycle, local_server, logs, run_commands, secret_file, secrets,
    settings, shell, snapshots,
};

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
        SandboxCommand::Pause { sandboxes, without_memory } => {
            lifecycle::pause(&client, sandboxes, PauseSandbox { memory: !without_memory }, is_json).await
        }
        SandboxCommand::Resume { sandboxes, ttl } => lifecycle::resume(&client, sandboxes, ttl, is_json).await,
        SandboxCommand::Kill { sandboxes, all: false, labels: _ } => lifecycle::kill(&client, sandboxes, is_json).await,
        SandboxCommand::Kill { sandboxes: _, all: true, labels } => lifecycle::kill_all(&client, labels, is_json).await,
    })
}

pub(crate) fn snapshot(arguments: SnapshotArguments) -> ExitCode {
    let is_json = arguments.server.json;
    start(&arguments.server, async |client| snapshots::main(&client, arguments.command, is_json).await)
}

pub(crate) fn code(arguments: CodeArguments) -> ExitCode {
    let is_json = arguments.server.json;
    start(&arguments.server, async |client| super::code::main(&client, arguments.command, is_json).await)
}

pub(crate) fn runs(arguments: RunsArguments) -> ExitCode {
    let is_json = arguments.server.json;
    start(&arguments.server, async |client| run_commands::main(&client, arguments.command, is_json).await)
}

pub(crate) fn agent(arguments: AgentArguments) -> ExitCode {
    let (is_json, server) = (arguments.server.json, arguments.server);
    match arguments.command {
        AgentCommand::Init { file, name } => finish(is_json, async || agent_commands::init(&file, name, is_json)),
        AgentCommand::Check { files } => finish(is_json, async || agent_commands::check(&files, is_json)),
        AgentCommand::List { directory } => finish(is_json, async || agent_commands::list(&directory, is_json)),
        AgentCommand::Show { agent } => match agent.to_str().and_then(RunId::parse) {
            Some(run) => start(&server, async |client| agent_commands::show_run(&client, run, is_json).await),
            None => finish(is_json, async || agent_commands::show_file(&agent, is_json)),
        },
        AgentCommand::Run { task, agent, workspace, fs, labels, idempotency_key, detach } => {
            finish(is_json, async || {
                let request = RunRequest { task, agent, workspace, fs, labels, idempotency_key, is_detached: detach };
                // An invalid agent starts no server.
                let request = request.resolve()?;
                let (client, access, is_own) = local_server::client(&server).await?;
                agent_run::main(&client, is_own, request, is_json).await.map_err(|failure| failure.with_access(&access))
            })
        }
    }
}

pub(crate) fn changes(server: &ServerArguments, command: ChangesCommand) -> ExitCode {
    start(server, async |client| super::changes::main(&client, command, server.json).await)
}

pub(crate) fn net(server: &ServerArguments, task: NetTask) -> ExitCode {
    start(server, async |client| super::net::main(&client, task, server.json).await)
}

pub(crate) fn template(server: &ServerArguments, task: TemplateTask) -> ExitCode {
    start(server, async |client| super::templates::main(&client, task, server.json).await)
}

pub(crate) fn key(arguments: KeyArguments) -> ExitCode {
    let is_json = arguments.server.json;
    match arguments.command {
        KeyCommand::Create { name, expires, data_dir: Some(data), project } => {
            finish(is_json, async || keys::create_offline(&data, project, &name, expires, is_json).await)
        }
        command => start(&arguments.server, async |client| keys::main(&client, command, is_json).await),
    }
}

pub(crate) fn models(arguments: ModelArguments) -> ExitCode {
    let is_json = arguments.server.json;
    start(&arguments.server, async |client| super::models::main(&client, arguments.command, is_json).await)
}

pub(crate) fn secret(arguments: SecretArguments) -> ExitCode {
    let is_json = arguments.server.json;
    let file = match (arguments.file, arguments.local) {
        (Some(file), _) => Some(Ok(file)),
        (None, true) => Some(secret_file::default_path()),
        (None, false) => None,
    };
    if let Some(file) = file {
        return finish(is_json, async || secret_file::main(&file?, arguments.command, is_json));
    }
    match arguments.command {
        SecretCommand::Rekey { vault, forget_old_keys } => {
            finish(is_json, async || secrets::rekey(&vault, forget_old_keys, is_json).await)
        }
        command => start(&arguments.server, async |client| secrets::main(&client, command, is_json).await),
    }
}

/// The exit status of a command, usually 0.
pub(crate) type CommandResult = Result<u8, CommandFailure>;

fn start(server: &ServerArguments, command: impl AsyncFnOnce(Client) -> CommandResult) -> ExitCode {
    finish(server.json, async || {
        let (client, access) = settings::client(server)?;
        command(client).await.map_err(|failure| failure.with_access(&access))
    })
}

fn finish(is_json: bool, command: impl AsyncFnOnce() -> CommandResult) -> ExitCode {
    let outcome =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CommandFailure::from).and_then(
            |runtime| {
                let outcome = runtime.block_on(command());
                // A thread may still be waiting for our stdin, and has nothing left to do.
                runtime.shutdown_background();
                outcome
            },
        );
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            // If this can't be printed, the exit status reports the failure too.
            let _ = match is_json {
                true => std::io::stdout().write_all(failure.json().as_bytes()),
                false => std::io::stderr().write_all(failure.text().as_bytes()),
            };
            ExitCode::from(failure.status())
        }
    }
}

pub(crate) fn print_json(value: &impl Serialize) -> Result<(), CommandFailure> {
    let mut line =
        serde_json::to_vec(value).map_err(|error| CommandFailure::ours("internal", error.to_string(), ""))?;
    line.push(b'\n');
    print(&line)
}

/// Writes to stdout and flushes.
pub(crate) fn print(bytes: &[u8]) -> Result<(), CommandFailure> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush())?;
    Ok(())
}

/// Writes a note for people to stderr.
pub(crate) fn note(text: &str) {
    // If this can't be printed, there is nothing left to do.
    let _ = writeln!(std::io::stderr(), "saggar: {text}");
}
