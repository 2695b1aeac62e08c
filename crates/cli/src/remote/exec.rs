//! `saggar sandbox exec`: runs a program in a sandbox with its streams connected to ours.
//!
//! One task does three things at once: it writes the program's output, sends our stdin, and forwards signals. The
//! first Ctrl-C interrupts the program's whole tree, the second kills it. The command still ends when the program
//! does, with its status.

use std::io::IsTerminal;

use saggar_api::client::{Client, ExecHandle, ExecStream, SandboxHandle};
use saggar_api::{
    Code, Environment, Exec, ExecEvent, ExecLimits, ExecState, ExecStatus, Problem, Signal, SignalExec, SignalScope,
    StartExec,
};
use saggar_supervisor::EscapeFilter;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::arguments::ExecArguments;
use super::dispatch::{CommandResult, note, print, print_json};
use super::failure::CommandFailure;
use super::shell;
use super::shown::line;
use crate::joint::{Joint, Stdin, Wish};
use crate::outcome::{CANCELLED, NO_SUCH_PROGRAM, OUR_FAILURE, OUT_OF_MEMORY, REFUSED, SIGNAL_BASE, TIMED_OUT};

/// Maximum size of one piece of stdin, in bytes.
const STDIN_PIECE: usize = 64 << 10;

pub(crate) async fn main(client: &Client, arguments: ExecArguments, is_json: bool) -> CommandResult {
    let sandbox = client.sandbox(arguments.sandbox.clone());
    if arguments.tty && is_json {
        return Err(CommandFailure::ours(
            "invalid_value",
            "--tty can't be combined with --json",
            "leave out --tty or --json",
        ));
    }
    let joint = match arguments.background {
        true => Joint { stdin: Stdin::Empty, terminal: None },
        false => Joint::of(Wish { stdin: arguments.stdin.as_deref(), tty: arguments.tty, is_json }),
    };
    let stdin = open_stdin(&joint.stdin).await?;
    let request = request(&arguments, &joint)?;
    if arguments.background {
        return background(&sandbox, &request, is_json).await;
    }
    if let Some(terminal) = joint.terminal {
        return shell::attend(&sandbox, request, terminal).await;
    }
    let show = if is_json { Show::Nothing } else { Show::Output };
    let Some(exec) = live(&sandbox, &request, stdin, show).await? else { return Ok(CANCELLED) };
    if is_json {
        print_json(&sandbox.exec(exec.id.clone()).get().await?)?;
    } else {
        tell_end(&exec);
    }
    Ok(exit_status(&exec))
}

fn request(arguments: &ExecArguments, joint: &Joint) -> Result<StartExec, CommandFailure> {
    let limits = ExecLimits { memory: arguments.memory, pids: arguments.pids, cpus: arguments.cpus };
    Ok(StartExec {
        env: Environment::of(arguments.env.clone())?,
        cwd: arguments.cwd.clone(),
        user: arguments.user,
        stdin: joint.stdin != Stdin::Empty,
        timeout: arguments.timeout,
        limits: (limits != ExecLimits::default()).then_some(limits),
        ..StartExec::new(arguments.command())
    })
}

async fn background(sandbox: &SandboxHandle, request: &StartExec, is_json: bool) -> CommandResult {
    let exec = sandbox.start(request).await.map_err(refused)?;
    if is_json {
        print_json(&exec)?;
    } else {
        print(format!("{}\n", exec.id).as_bytes())?;
        if std::io::stderr().is_terminal() {
            note(&format!("follow it with: saggar sandbox logs {} {} -f", sandbox.id(), exec.id));
        }
    }
    Ok(0)
}

/// Whether output is printed or discarded.
#[derive(Clone, Copy)]
enum Show {
    Output,
    Nothing,
}

type Source = Box<dyn AsyncRead + Unpin>;

async fn open_stdin(stdin: &Stdin) -> Result<Option<Source>, CommandFailure> {
    match stdin {
        Stdin::Empty => Ok(None),
        Stdin::Ours => Ok(Some(Box::new(tokio::io::stdin()))),
        Stdin::File(path) => {
            let path = std::path::Path::new(path);
            let file = tokio::fs::File::open(path).await.map_err(|error| CommandFailure::file(path, "read", &error))?;
            Ok(Some(Box::new(file)))
        }
    }
}

/// Starts the program and stays until it ends; `None` if it was cancelled before it started.
async fn live(
    sandbox: &SandboxHandle,
    request: &StartExec,
    stdin: Option<Source>,
    show: Show,
) -> Result<Option<Exec>, CommandFailure> {
    let (known, exec) = watch::channel(None);
    let output = async {
        let mut stream = sandbox.stream(request).await.map_err(refused)?;
        pass_output(&mut stream, show, |exec| {
            known.send_replace(Some(exec));
        })
        .await
    };
    tokio::select! {
        ended = output => ended.map(Some),
        failure = forward_stdin(stdin, exec.clone()) => Err(failure),
        () = forward_signals(exec) => Ok(None),
    }
}

/// Writes output until the exec ends. On a terminal, escape sequences that could act on it are removed.
pub(crate) async fn follow(stream: &mut ExecStream) -> Result<Exec, CommandFailure> {
    pass_output(stream, Show::Output, |_| {}).await
}

async fn pass_output(
    stream: &mut ExecStream,
    show: Show,
    mut started: impl FnMut(ExecHandle),
) -> Result<Exec, CommandFailure> {
    let mut stdout = Sink::new(tokio::io::stdout(), std::io::stdout().is_terminal());
    let mut stderr = Sink::new(tokio::io::stderr(), std::io::stderr().is_terminal());
    while let Some(event) = stream.next().await? {
        match (event, show) {
            (ExecEvent::Started { .. }, _) => {
                if let Some(exec) = stream.exec() {
                    started(exec);
                }
            }
            (ExecEvent::Stdout { bytes }, Show::Output) => stdout.write(&bytes.0).await?,
            (ExecEvent::Stderr { bytes }, Show::Output) => stderr.write(&bytes.0).await?,
            (ExecEvent::Gap { bytes, .. }, Show::Output) => note(&format!("{bytes} bytes of output were dropped")),
            (ExecEvent::Exited { exec }, _) => return Ok(*exec),
            (ExecEvent::Failed { problem }, _) => return Err(refused(problem.into())),
            (ExecEvent::Stdout { .. } | ExecEvent::Stderr { .. } | ExecEvent::Gap { .. }, Show::Nothing) => {}
            (ExecEvent::Other, _) => {}
        }
    }
    Err(CommandFailure::ours("connection_lost", "the stream ended before the program did", "see `saggar sandbox logs`"))
}

pub(super) struct Sink<W> {
    to: W,
    filter: Option<EscapeFilter>,
}

impl<W: AsyncWrite + Unpin> Sink<W> {
    pub(super) fn new(to: W, is_terminal: bool) -> Self {
        Self { to, filter: is_terminal.then(EscapeFilter::default) }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.filter {
            None => self.to.write_all(bytes).await?,
            Some(filter) => {
                let mut shown = Vec::with_capacity(bytes.len());
                filter.pass(bytes, |byte| shown.push(byte));
                self.to.write_all(&shown).await?;
            }
        }
        self.to.flush().await
    }
}

/// Sends our stdin until it ends, and then waits forever: only the program's end ends the command.
async fn forward_stdin(stdin: Option<Source>, mut exec: watch::Receiver<Option<ExecHandle>>) -> CommandFailure {
    let Some(mut stdin) = stdin else { return std::future::pending().await };
    let Some(exec) = running(&mut exec).await else { return std::future::pending().await };
    let mut piece = vec![0; STDIN_PIECE];
    loop {
        let count = match stdin.read(&mut piece).await {
            Ok(count) => count,
            Err(error) => return error.into(),
        };
        let sent = match count {
            0 => exec.end_stdin(Vec::new()).await,
            count => exec.send_stdin(piece[..count].to_vec()).await,
        };
        match sent {
            Ok(()) if count > 0 => {}
            Ok(()) => return std::future::pending().await,
            // The program has ended or closed its stdin. Its exit status is reported by the output stream.
            Err(error) if error.problem().is_some_and(|problem| is_over(problem.code)) => {
                return std::future::pending().await;
            }
            Err(error) => return error.into(),
        }
    }
}

fn is_over(code: Code) -> bool {
    matches!(code, Code::ExecEnded | Code::SandboxEnded | Code::NotFound | Code::Conflict)
}

/// Forwards signals. Returns if there is nothing to forward them to.
async fn forward_signals(mut exec: watch::Receiver<Option<ExecHandle>>) {
    let (Ok(mut interrupt), Ok(mut terminate)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    let mut interrupts = 0;
    loop {
        let sent = tokio::select! {
            _ = interrupt.recv() => {
                interrupts += 1;
                if interrupts == 1 { Signal::INT } else { Signal::KILL }
            }
            _ = terminate.recv() => Signal::TERM,
        };
        let Some(exec) = exec.borrow_and_update().clone() else { return };
        let request = SignalExec { signal: sent, scope: SignalScope::Tree };
        // A third Ctrl-C stops waiting: the server may be gone.
        if interrupts > 2 {
            return note(&format!("not waited for: {}", exec.id()));
        }
        if let Err(error) = exec.signal(&request).await {
            note(&format!("the signal was not delivered: {}", line(&error.to_string())));
        }
    }
}

async fn running(exec: &mut watch::Receiver<Option<ExecHandle>>) -> Option<ExecHandle> {
    exec.wait_for(Option::is_some).await.ok()?.clone()
}

/// Maps a refusal to the exit statuses of an exec.
pub(crate) fn refused(error: saggar_api::client::Error) -> CommandFailure {
    let status = error.problem().map_or(OUR_FAILURE, refused_status);
    CommandFailure::from(error).with_status(status)
}

fn refused_status(problem: &Problem) -> u8 {
    match problem.code {
        Code::ProgramNotFound => NO_SUCH_PROGRAM,
        code if code.status() < 500 => REFUSED,
        _ => OUR_FAILURE,
    }
}

/// Prints notes beside the program's own output.
pub(crate) fn tell_end(exec: &Exec) {
    if let Some(error) = &exec.error {
        note(&line(&error.detail));
    } else if exec.status == ExecState::Ended(ExecStatus::TimedOut) {
        note("the program was killed when its time limit expired; raise it with --timeout");
    } else if exec.status == ExecState::Ended(ExecStatus::OutOfMemory) {
        note(
            "the kernel killed the program because it ran out of memory; raise the limit of the sandbox, or of this program, with --memory",
        );
    }
    for denial in &exec.denials {
        note(&format!("{} ({})", line(&denial.message), line(&denial.rule)));
    }
}

/// The exit status of an exec, the same as for `saggar run`.
pub(crate) fn exit_status(exec: &Exec) -> u8 {
    match exec.status {
        ExecState::Ended(ExecStatus::Exited) => exec.exit_code.unwrap_or(OUR_FAILURE),
        ExecState::Ended(ExecStatus::Signaled) => {
            exec.signal.map_or(OUR_FAILURE, |signal| SIGNAL_BASE.saturating_add(signal))
        }
        ExecState::Ended(ExecStatus::TimedOut) => TIMED_OUT,
        ExecState::Ended(ExecStatus::Cancelled) => CANCELLED,
        ExecState::Ended(ExecStatus::OutOfMemory) => OUT_OF_MEMORY,
        ExecState::Ended(ExecStatus::Refused) => REFUSED,
        ExecState::Ended(ExecStatus::SetupFailed)
            if exec.error.as_ref().is_some_and(|error| error.code == Code::ProgramNotFound) =>
        {
            NO_SUCH_PROGRAM
        }
        ExecState::Running | ExecState::Ended(ExecStatus::SetupFailed) | ExecState::Lost => OUR_FAILURE,
    }
}
