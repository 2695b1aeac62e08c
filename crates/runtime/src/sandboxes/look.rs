//! Reads sandboxes: one, many, events, usage, execs.

use std::collections::HashMap;

use saggar_domain::{Beginning, Denial, ExecId, ProjectId, RunId, SandboxId, SandboxState, Usage};
use saggar_store::{EventPage, Exec, ExecOutput, ExecProgress, Page, PageLimit, Sandbox, SandboxQuery, Scope};
use saggar_supervisor::control::{Attach, EventBody, ExecDescription, Op, Reply, UsageReport};

use super::Sandboxes;
use super::own_labels::RUN_LABEL;
use crate::fault::Fault;
use crate::following::{Finished, Followed, Following, first_place};
use crate::permit::{Action, Permit};
use crate::supervisor::{Connection, ControlError, started};

/// Maximum output of each stream that is returned with an exec.
const OUTPUT_MAX: usize = 1 << 20;

/// An exec, from its current source.
#[derive(Clone, Debug)]
pub enum ExecView {
    /// From a live sandbox.
    Live(Box<Finished>),
    /// From the store: its sandbox has ended.
    Stored(Box<StoredExec>),
}

/// An exec that only the store knows.
#[derive(Clone, Debug)]
pub struct StoredExec {
    pub exec: Exec,
    /// The end of its output.
    pub output: ExecOutput,
    /// Its usage, if it was reported and is kept.
    pub usage: Option<Usage>,
    /// Its denials, as far as they are kept.
    pub denials: Vec<Denial>,
}

impl StoredExec {
    /// `told` is its end as reported by its supervisor.
    fn new(exec: Exec, output: ExecOutput, told: Option<ExecDescription>) -> Self {
        let (usage, denials) = told.map(|state| (state.usage, state.denials)).unwrap_or_default();
        Self { exec, output, usage, denials }
    }
}

impl Sandboxes {
    pub async fn get(&self, permit: &Permit) -> Result<Sandbox, Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_)))?;
        self.row_of(permit.project(), permit.sandbox()?).await
    }

    /// A page of sandboxes of the permit's project.
    pub async fn list(&self, permit: &Permit, mut query: SandboxQuery) -> Result<Page<Sandbox, SandboxId>, Fault> {
        permit.check(|action| *action == Action::ListSandboxes)?;
        query.scope = Scope::Project(permit.project().clone());
        Ok(self.store().sandboxes(query).await?)
    }

    /// A sandbox's current and past usage.
    pub async fn usage(&self, permit: &Permit) -> Result<UsageReport, Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_)))?;
        let id = permit.sandbox()?;
        match self.question_asleep(permit.project(), id, Op::Usage).await? {
            Reply::Used(report) => Ok(*report),
            _ => Err(Fault::from_control(ControlError::Protocol("another answer than `used`".to_owned()), id)),
        }
    }

    /// A sandbox's events after that number, also of an ended one; and the run that it belongs to.
    pub async fn events(
        &self,
        permit: &Permit,
        after: Option<u64>,
        limit: PageLimit,
    ) -> Result<(EventPage, Option<RunId>), Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_)))?;
        let id = permit.sandbox()?;
        // Checks the project, because an event has none of its own.
        let row = self.row_of(permit.project(), id).await?;
        let page = self.store().events_after(id.clone(), after, limit).await?;
        Ok((page, self.run_of(&row).await?))
    }

    /// The run that a sandbox was made for. It may have been removed since, and clients of an
    /// earlier version could set the same label, so the run must exist.
    pub(crate) async fn run_of(&self, row: &Sandbox) -> Result<Option<RunId>, Fault> {
        let named = row.asked.labels.entries().get(RUN_LABEL);
        let Some(id) = named.and_then(|value| RunId::parse(value)) else { return Ok(None) };
        let run = self.store().run_of_any(id).await?;
        Ok(run.filter(|run| run.project == row.asked.project).map(|run| run.id))
    }

    /// Waits until there is an event after that number: `true`. If the sandbox is over and has no later event:
    /// `false`.
    pub async fn next_event(&self, permit: &Permit, after: u64) -> Result<bool, Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_)))?;
        match self.live(permit.project(), permit.sandbox()?).await {
            Ok(live) => {
                let (mut stored, mut ended) = (live.stored.subscribe(), live.ended.subscribe());
                tokio::select! {
                    // If a sender is gone, so is the sandbox.
                    _ = ended.wait_for(Option::is_some) => Ok(false),
                    next = stored.wait_for(|last| *last > after) => Ok(next.is_ok()),
                }
            }
            Err(Fault::Ended { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    /// Whether a sandbox is live and not about to end. A paused one is.
    pub(crate) async fn is_going_on(&self, permit: &Permit) -> bool {
        let Ok(id) = permit.sandbox() else { return false };
        match self.question_asleep(permit.project(), id, Op::Describe).await {
            Ok(Reply::Described(description)) => description.state != SandboxState::Ending,
            Ok(_) => true,
            Err(fault) => !matches!(fault, Fault::Ended { .. } | Fault::NotFound { .. }),
        }
    }

    /// Waits for the end of a sandbox; returns at once if it is over.
    pub async fn ended(&self, permit: &Permit) -> Result<(), Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_)))?;
        match self.live(permit.project(), permit.sandbox()?).await {
            Ok(live) => {
                // If the sender is gone, so is the sandbox.
                let _ = live.ended.subscribe().wait_for(Option::is_some).await;
                Ok(())
            }
            Err(Fault::Ended { .. }) => Ok(()),
            Err(other) => Err(other),
        }
    }

    /// The execs of a sandbox, newest first: those known to its supervisor before those only in the store.
    pub async fn execs(&self, permit: &Permit) -> Result<Vec<ExecView>, Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_)))?;
        let (project, id) = (permit.project(), permit.sandbox()?);
        let mut views = Vec::new();
        let mut seen = HashMap::new();
        if let Some(states) = self.live_execs(project, id).await? {
            for state in states.into_iter().rev() {
                seen.insert(state.exec_id.clone(), ());
                let finished = Finished { exec: state, stdout: Vec::new(), stderr: Vec::new() };
                views.push(ExecView::Live(Box::new(finished)));
            }
        }
        self.row_of(project, id).await?;
        let mut stored = self.store().execs(id.clone(), PageLimit::MAX, None).await?.items;
        stored.retain(|exec| !seen.contains_key(&exec.asked.id));
        let mut told = if stored.is_empty() { HashMap::new() } else { self.told_ends(id, "exec_ended").await? };
        for exec in stored {
            let told = told.remove(&exec.asked.id);
            views.push(ExecView::Stored(Box::new(StoredExec::new(exec, ExecOutput::default(), told))));
        }
        Ok(views)
    }

    /// Ends of execs as reported by their supervisor, from the events that contain this text.
    async fn told_ends(&self, id: &SandboxId, text: &str) -> Result<HashMap<ExecId, ExecDescription>, Fault> {
        let events = self.store().events_naming(id.clone(), text.to_owned()).await?;
        let ends = events.iter().filter_map(|event| match event.body.to_value() {
            Ok(EventBody::ExecEnded(state)) => Some((state.exec_id.clone(), *state)),
            // Other events that contain it, and unreadable ones.
            Ok(_) | Err(_) => None,
        });
        Ok(ends.collect())
    }

    pub(crate) async fn live_execs(
        &self,
        project: &ProjectId,
        id: &SandboxId,
    ) -> Result<Option<Vec<ExecDescription>>, Fault> {
        match self.question_asleep(project, id, Op::Describe).await {
            Ok(Reply::Described(description)) => Ok(Some(description.execs)),
            Ok(_) => Err(Fault::from_control(ControlError::Protocol("another answer than `described`".to_owned()), id)),
            Err(Fault::Ended { .. }) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// One exec with its kept output.
    pub async fn exec(&self, permit: &Permit, exec_id: &ExecId) -> Result<ExecView, Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_)))?;
        let (project, id) = (permit.project(), permit.sandbox()?);
        if let Some(execs) = self.live_execs(project, id).await?
            && execs.iter().any(|exec| exec.exec_id == *exec_id)
        {
            let finished = self.kept_output(project, id, exec_id).await?;
            return Ok(ExecView::Live(Box::new(finished)));
        }
        self.row_of(project, id).await?;
        let stored = self.store().exec(id.clone(), exec_id.clone()).await?.ok_or_else(|| Fault::no_exec(exec_id))?;
        let output = self.store().exec_output(id.clone(), exec_id.clone()).await?.unwrap_or_default();
        let told = self.told_ends(id, exec_id.as_str()).await?.remove(exec_id);
        Ok(ExecView::Stored(Box::new(StoredExec::new(stored, output, told))))
    }

    /// The output of an exec that is kept so far.
    async fn kept_output(&self, project: &ProjectId, id: &SandboxId, exec_id: &ExecId) -> Result<Finished, Fault> {
        let live = self.live(project, id).await?;
        let fault = |error| Fault::from_control(error, id);
        let attach = Op::Attach(Attach { exec_id: exec_id.clone(), from: Beginning::Start, stdin: false });
        let mut connection = Connection::ask(&live.socket, attach).await.map_err(fault)?;
        // As it is at this moment: what it prints later is not waited for.
        let exec = connection.answer().await.and_then(started).map_err(fault)?;
        let (incoming, feeding) = connection.split();
        let following = Following::new(id.clone(), incoming, first_place(Beginning::Start, &exec));
        Followed { exec, following, feeding }.read_up_to_now(OUTPUT_MAX).await
    }
}

impl ExecView {
    pub fn is_running(&self) -> bool {
        match self {
            Self::Live(finished) => finished.exec.status.is_none(),
            Self::Stored(stored) => stored.exec.progress == ExecProgress::Running,
        }
    }
}
