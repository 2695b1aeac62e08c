//! `saggar agent run`: starts a run and follows it, with what it does, uses and waits for.
//!
//! The run doesn't depend on this process: whatever happens here, it goes on. Ctrl-C asks what to do with it.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use saggar_api::client::{Client, Heard, RunHandle};
use saggar_api::{JournalQuery, Label, Run, StartRun};
use saggar_domain::{FsMode, HostPath, SandboxId, SandboxState};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{interval, sleep};

use super::agent_commands::checked;
use super::arguments::HostDirectory;
use super::dispatch::{CommandResult, note, print, print_json};
use super::failure::CommandFailure;
use super::journal_line::{entry_line, outcome};
use super::lifecycle::collected;
use super::run_commands::awaited;
use super::run_view::{RunSums, StatusLine};

/// Exit status for a run that did not complete successfully.
const NOT_COMPLETED: u8 = 1;
/// Exit status after Ctrl-C.
const INTERRUPTED: u8 = 130;
/// Entries that wait to be shown.
const ENTRIES_MAX: usize = 64;
/// How long to wait for the end of a sandbox, and how often to look.
const END_PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often the status line is drawn.
const TICK: Duration = Duration::from_secs(1);

pub(crate) struct RunRequest {
    pub(crate) task: Option<String>,
    pub(crate) agent: PathBuf,
    pub(crate) workspace: Option<HostDirectory>,
    pub(crate) fs: Option<FsMode>,
    pub(crate) labels: Vec<Label>,
    pub(crate) idempotency_key: Option<String>,
    pub(crate) is_detached: bool,
}

impl RunRequest {
    /// The request to the server. Refused here is what any server would refuse.
    pub(crate) fn resolve(self) -> Result<Resolved, CommandFailure> {
        // Otherwise another agent would work on a name, and be paid for it.
        if let Some(task) = self.task.as_deref().filter(|task| is_agent_file(task)) {
            let what = format!("the task is {task:?}, which is a file");
            let help = format!("to run that agent: saggar agent run --agent {task}; a task is a sentence");
            return Err(CommandFailure::ours("task_is_file", what, help));
        }
        let (mut agent, _) = checked(&self.agent)?;
        if let Some(task) = self.task {
            agent.task = task;
        }
        if agent.task.trim().is_empty() {
            return Err(CommandFailure::ours(
                "no_task",
                format!("{} has no task, and none is given", self.agent.display()),
                "write what to do: saggar agent run 'TASK'",
            ));
        }
        agent.sandbox.fs = self.fs.or(agent.sandbox.fs);
        let directory = match self.workspace {
            None => None,
            Some(HostDirectory::Path(path)) => Some(existing(path)?),
            Some(HostDirectory::Named(name)) => {
                agent.sandbox.workspace = Some(name);
                None
            }
        };
        let start = StartRun { agent, directory, labels: collected(self.labels)? };
        Ok(Resolved { file: self.agent, start, idempotency_key: self.idempotency_key, is_detached: self.is_detached })
    }
}

fn is_agent_file(task: &str) -> bool {
    let path = std::path::Path::new(task);
    path.extension().is_some_and(|extension| extension == "toml" || extension == "json") && path.is_file()
}

/// The directory from the root, without links, so that it is what the person meant.
fn existing(path: HostPath) -> Result<HostPath, CommandFailure> {
    let wrong = |why: String| {
        CommandFailure::ours("workspace", format!("{}: {why}", path.as_str()), "name a directory of this host")
    };
    let found = std::fs::canonicalize(path.as_str()).map_err(|error| wrong(error.to_string()))?;
    if !found.is_dir() {
        return Err(wrong("it is not a directory".to_owned()));
    }
    let text = found.to_str().ok_or_else(|| wrong("its path is not UTF-8".to_owned()))?;
    HostPath::parse(text).map_err(wrong)
}

/// A request without contradictions.
pub(crate) struct Resolved {
    file: PathBuf,
    start: StartRun,
    idempotency_key: Option<String>,
    is_detached: bool,
}

pub(crate) async fn main(client: &Client, is_own: bool, request: Resolved, is_json: bool) -> CommandResult {
    // The sandboxes of a server of our own are in our data directory.
    let changes_flag = if is_own { "" } else { " --server" };
    let started = match &request.idempotency_key {
        Some(key) => client.start_run_once(&request.start, key).await,
        None => client.start_run(&request.start).await,
    };
    let run = started.map_err(|error| CommandFailure::from(error).in_file(&request.file))?;
    match is_json {
        true => print_json(&run)?,
        false => print(format!("{}\n", run.id).as_bytes())?,
    }
    match request.is_detached {
        true => Ok(0),
        false => {
            let sandbox = &request.start.agent.sandbox;
            let has_workspace = request.start.directory.is_some() || sandbox.workspace.is_some();
            let watch = Watch {
                workspace_on: has_workspace.then(|| client.clone()),
                server_flag: changes_flag,
                ..Watch::begin(client.run(run.id), is_json)?
            };
            watch.follow().await
        }
    }
}

/// A run that is followed.
struct Watch {
    run: RunHandle,
    is_json: bool,
    sums: RunSums,
    status: StatusLine,
    interrupt: Signal,
    /// The server, if it has a workspace whose changes are kept at the end.
    workspace_on: Option<Client>,
    /// How `saggar changes` finds the sandbox.
    server_flag: &'static str,
}

/// What a person wants after Ctrl-C.
enum Wish {
    Pause,
    Cancel,
    Leave,
    GoOn,
}

impl Watch {
    fn begin(run: RunHandle, is_json: bool) -> Result<Self, CommandFailure> {
        let (sums, status) = (RunSums::default(), StatusLine::new(!is_json));
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { run, is_json, sums, status, interrupt, workspace_on: None, server_flag: "" })
    }

    async fn follow(mut self) -> CommandResult {
        let (sender, mut entries) = mpsc::channel(ENTRIES_MAX);
        let (followed, is_live) = (self.run.clone(), self.status.is_shown());
        // A task of its own, because reading an entry must not be interrupted halfway.
        let reading = tokio::spawn(async move {
            let mut journal = followed.follow(&JournalQuery { after: Some(0), live: Some(is_live) }).await?;
            while let Some(heard) = journal.next_heard().await? {
                if sender.send(heard).await.is_err() {
                    break;
                }
            }
            Ok::<_, saggar_api::client::Error>(())
        });
        let mut tick = interval(TICK);
        loop {
            tokio::select! {
                entry = entries.recv() => match entry {
                    Some(Heard::Entry(entry)) => self.show(&entry).await?,
                    Some(Heard::Said(said)) => self.sums.hear(&said),
                    None => break,
                },
                _ = self.interrupt.recv() => {
                    if let Some(status) = self.interrupted().await? {
                        reading.abort();
                        return Ok(status);
                    }
                }
                _ = tick.tick() => {}
            }
            self.status.draw(&self.sums);
        }
        self.status.clear();
        if let Ok(Err(error)) = reading.await {
            let id = self.run.id();
            note(&format!(
                "{id} is not lost: it goes on when its server runs, and saggar runs follow {id} shows the rest"
            ));
            return Err(error.into());
        }
        self.ended().await
    }

    async fn show(&mut self, entry: &Value) -> Result<(), CommandFailure> {
        self.sums.take(entry);
        if self.is_json {
            return print_json(entry);
        }
        self.status.clear();
        print(format!("{}\n", entry_line(entry).text).as_bytes())?;
        let may_wait = entry["event"] == "step_unknown" || entry["effect"]["do"] == "ask_human";
        if may_wait {
            print(awaited(&self.run.get().await?).as_bytes())?;
        }
        Ok(())
    }

    /// Asks what to do with the run; the exit status, if it is no longer followed.
    async fn interrupted(&mut self) -> Result<Option<u8>, CommandFailure> {
        self.status.clear();
        let id = self.run.id().clone();
        let is_asked = !self.is_json && std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let wish = if is_asked { self.ask().await? } else { Wish::Leave };
        match wish {
            Wish::GoOn => return Ok(None),
            Wish::Pause => {
                self.run.pause().await?;
                note(&format!("{id} starts nothing new; let it go on with: saggar runs resume {id}"));
            }
            Wish::Cancel => {
                self.run.cancel().await?;
                note(&format!("{id} is cancelled"));
            }
            Wish::Leave => note(&format!(
                "{id} goes on; follow it with: saggar runs follow {id}; end it with: saggar runs cancel {id}"
            )),
        }
        Ok(Some(INTERRUPTED))
    }

    async fn ask(&mut self) -> Result<Wish, CommandFailure> {
        print(
            b"\nThe run goes on meanwhile. [p]ause it, [c]ancel it, [l]eave it running, or Enter to follow it again: ",
        )?;
        let typed = tokio::task::spawn_blocking(|| {
            let mut typed = String::new();
            std::io::stdin().read_line(&mut typed).map(|_| typed)
        });
        tokio::select! {
            typed = typed => {
                let typed = typed.ok().and_then(Result::ok).unwrap_or_default();
                Ok(match typed.trim() {
                    "p" | "pause" => Wish::Pause,
                    "c" | "cancel" => Wish::Cancel,
                    "l" | "leave" => Wish::Leave,
                    _ => Wish::GoOn,
                })
            }
            // Whoever presses it twice wants to get away.
            _ = self.interrupt.recv() => {
                print(b"\n")?;
                Ok(Wish::Leave)
            }
        }
    }

    async fn ended(&self) -> CommandResult {
        let run = self.run.get().await?;
        let is_completed = run.outcome.as_ref().is_some_and(|outcome| outcome["outcome"] == "completed");
        if !self.is_json {
            print(conclusion(&run, &self.sums).as_bytes())?;
            if let (Some(client), Some(sandbox)) = (&self.workspace_on, &run.sandbox_id) {
                until_ended(client, sandbox).await;
                note(&format!(
                    "the workspace is as it was; look at the changes with: saggar changes diff {sandbox}{0}; apply them with: saggar changes apply {sandbox}{0}",
                    self.server_flag
                ));
            }
        }
        Ok(if is_completed { 0 } else { NOT_COMPLETED })
    }
}

/// Waits until the run's sandbox has ended, because its changes are kept only then.
async fn until_ended(client: &Client, sandbox: &SandboxId) {
    let sandbox = client.sandbox(sandbox.clone());
    let begun = Instant::now();
    while begun.elapsed() < END_PATIENCE {
        match sandbox.get().await {
            Ok(found) if found.state != SandboxState::Ended => sleep(LOOK_EVERY).await,
            // A record that is gone was of a sandbox that has ended.
            Ok(_) | Err(_) => return,
        }
    }
}

/// The last lines: the outcome, what was used, and the answer with all its lines.
fn conclusion(run: &Run, sums: &RunSums) -> String {
    let ended = run.outcome.as_ref().map(outcome).unwrap_or_else(|| run.state.as_str().to_owned());
    let mut text = format!("{} ({})\n", super::shown::line(&ended), sums.used());
    let answer = run.outcome.as_ref().and_then(|outcome| outcome["answer"]["text"].as_str());
    if let Some(answer) = answer.filter(|answer| !answer.is_empty()) {
        text += &format!("{}\n", crate::outcome::visible(answer));
    }
    text
}
