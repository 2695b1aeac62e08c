//! `saggar sandbox shell`, and `exec` on a terminal: a terminal in a sandbox connected to ours.
//!
//! Our terminal is in raw mode meanwhile: every key, including Ctrl-C, goes to the program inside. A shell, or an
//! exec with `--tty`, may send any escape sequence; an exec that got a terminal by default may only use the screen.
//! The connection is a WebSocket. If it breaks, the program keeps running, and `saggar sandbox logs` shows its
//! output.

use std::io::IsTerminal;

use saggar_api::client::{AttachMessage, AttachReader, AttachWriter, Client, SandboxHandle};
use saggar_api::{AttachQuery, AttachReply, AttachRequest, CommandLine, Environment, Exec, StartExec, TerminalSize};
use saggar_supervisor::EscapeFilter;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};

use super::arguments::ShellArguments;
use super::dispatch::{CommandResult, note};
use super::exec::{exit_status, refused, tell_end};
use super::failure::CommandFailure;
use crate::joint::Terminal;
use crate::outcome::OUR_FAILURE;
use crate::streams;
use crate::terminal::{self, HandedOver};

/// Bash if it is installed, otherwise sh.
const SHELL: &str = "if command -v bash >/dev/null 2>&1; then exec bash -l; else exec sh -l; fi";
/// Maximum size of one piece of stdin, in bytes.
const STDIN_PIECE: usize = 16 << 10;

pub(crate) async fn main(client: &Client, arguments: ShellArguments) -> CommandResult {
    if !std::io::stdin().is_terminal() {
        return Err(CommandFailure::ours(
            "no_terminal",
            "a shell needs a terminal, and stdin is not one",
            "use `saggar sandbox exec SANDBOX sh` to pipe commands in",
        ));
    }
    let sandbox = client.sandbox(arguments.sandbox.clone());
    let command = match arguments.program.as_slice() {
        [] => CommandLine::Words(vec!["/bin/sh".into(), "-c".into(), SHELL.into()]),
        program => CommandLine::Words(program.to_vec()),
    };
    let request = StartExec {
        env: Environment::of(arguments.env)?,
        cwd: arguments.cwd,
        user: arguments.user,
        ..StartExec::new(command)
    };
    attend(&sandbox, request, Terminal::Whole).await
}

/// Starts the program on its own terminal, connected to ours, and stays until it ends.
pub(crate) async fn attend(sandbox: &SandboxHandle, mut request: StartExec, terminal: Terminal) -> CommandResult {
    let mut env = request.env.into_map();
    env.entry("TERM".to_owned()).or_insert_with(terminal::name);
    (request.env, request.stdin, request.tty) = (Environment::of(env)?, true, Some(terminal::size()));
    let exec = sandbox.start(&request).await.map_err(refused)?;
    let attached = sandbox.exec(exec.id.clone()).attach(AttachQuery::default()).await.map_err(refused)?;
    let raw = HandedOver::begin(terminal);
    let filter = streams::filter(Some(terminal)).filter(|_| std::io::stdout().is_terminal());
    let ended = tokio::select! {
        ended = show(attached.reader, filter) => ended,
        failure = send(attached.writer) => Err(failure),
        () = told_to_end() => Ok(None),
    };
    drop(raw);
    match ended? {
        Some(exec) => {
            tell_end(&exec);
            Ok(exit_status(&exec))
        }
        None => {
            note(&format!("detached; the program keeps running: saggar sandbox logs {} {} -f", sandbox.id(), exec.id));
            Ok(OUR_FAILURE)
        }
    }
}

async fn show(mut reader: AttachReader, mut filter: Option<EscapeFilter>) -> Result<Option<Exec>, CommandFailure> {
    let mut stdout = tokio::io::stdout();
    while let Some(message) = reader.next().await? {
        match message {
            AttachMessage::Output(_, bytes) => {
                match &mut filter {
                    None => stdout.write_all(&bytes).await?,
                    Some(filter) => {
                        let mut shown = Vec::with_capacity(bytes.len());
                        filter.pass(&bytes, |byte| shown.push(byte));
                        stdout.write_all(&shown).await?;
                    }
                }
                stdout.flush().await?;
            }
            AttachMessage::Reply(AttachReply::Exited { exec }) => return Ok(Some(*exec)),
            AttachMessage::Reply(AttachReply::Failed { problem }) => return Err(refused(problem.into())),
            AttachMessage::Reply(AttachReply::Started { .. } | AttachReply::Gap { .. } | AttachReply::Other) => {}
        }
    }
    Ok(None)
}

/// Sends keys and size changes until the connection ends.
async fn send(mut writer: AttachWriter) -> CommandFailure {
    let mut stdin = tokio::io::stdin();
    let mut resized = match signal(SignalKind::window_change()) {
        Ok(resized) => resized,
        Err(error) => return error.into(),
    };
    let mut piece = vec![0; STDIN_PIECE];
    let mut is_open = true;
    loop {
        let sent = tokio::select! {
            read = stdin.read(&mut piece), if is_open => match read {
                Ok(0) => {
                    is_open = false;
                    writer.send(&AttachRequest::StdinEnd).await
                }
                Ok(count) => writer.send_stdin(piece[..count].to_vec()).await,
                Err(error) => return error.into(),
            },
            _ = resized.recv() => {
                let TerminalSize { rows, cols } = terminal::size();
                writer.send(&AttachRequest::Resize { rows, cols }).await
            }
        };
        if sent.is_err() {
            // The reading half reports why, after the output that came before.
            return std::future::pending().await;
        }
    }
}

/// Waits for a signal that ends us, so that the terminal is restored, which the signal's default action would not do.
/// Ctrl-C is not one of them here.
async fn told_to_end() {
    let (Ok(mut terminate), Ok(mut hangup)) = (signal(SignalKind::terminate()), signal(SignalKind::hangup())) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}
