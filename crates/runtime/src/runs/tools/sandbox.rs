//! The sandbox of a run: created when first needed, found again by the next worker of the run, paused while the run
//! is idle.
//!
//! It is requested with an idempotency key derived from the run and its generation, so two workers that both need it
//! get the same one. A lost sandbox is replaced by one with the files of the run's last snapshot, and the agent is told
//! which changes they lack. One of a generation before a rollback is ended.

mod reuse;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use saggar_domain::secret::{Grant, SecretName};
use saggar_domain::{DeadlineAction, Draft, EndReason, Labels, OfRun, RunId, SandboxId, SnapshotId, User};
use saggar_egress::secret::Credential;
use saggar_engine::{KeptFiles, Report, Restored, ToolResult};
use saggar_store::{Idempotency, IdempotencyKey, Insertion, Life, RequestHash, Sandbox};
use tokio::time::{Instant, sleep};

use super::report::{failed, not_begun, returned};
use super::tool::{Needs, Tool};
use crate::fault::Fault;
use crate::files::{FilePath, Files};
use crate::permit::{Action, Permit, Subject};
use crate::runs::effects::{About, Over, Task};
use crate::sandboxes::{AskedWorkspace, FILES_OF_LABEL, Keep, NewSandbox, NewTerms, RUN_LABEL, Sandboxes, now, random};

/// How long to wait for a sandbox that is being created: longer than it takes to give it up.
const MAKING_MAX: Duration = Duration::from_secs(20);
/// Polling interval meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often a sandbox that never became ready is replaced.
const TRIES_MAX: u32 = 8;

#[derive(Debug)]
pub(in crate::runs) struct RunSandbox {
    sandboxes: Sandboxes,
    about: About,
    is_kept: bool,
    known: Mutex<Option<SandboxId>>,
    /// The lost sandbox: its replacement is another request.
    lost: Mutex<Option<SandboxId>>,
}

impl RunSandbox {
    pub(in crate::runs) fn new(sandboxes: Sandboxes, about: About, is_kept: bool) -> Self {
        let known = Mutex::new(about.sandbox.clone());
        Self { sandboxes, about, is_kept, known, lost: Mutex::default() }
    }

    /// Its id, as far as known.
    pub(in crate::runs) fn id(&self) -> Option<SandboxId> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Names the run and its branch: what they leave in a sandbox is theirs alone.
    pub(in crate::runs) fn branch(&self) -> String {
        format!("{}/{}", self.about.run, self.about.generation)
    }

    pub(in crate::runs) fn sandboxes(&self) -> &Sandboxes {
        &self.sandboxes
    }

    /// A permit to act on the run's behalf.
    pub(in crate::runs) fn permit(&self, action: Action) -> Result<Permit, Fault> {
        let subject = Subject::Run { run: self.about.run.clone(), project: self.about.project.clone() };
        Permit::decide(&subject, action)
    }

    /// A path as its programs would read it.
    pub(in crate::runs) fn path(&self, text: &str) -> Result<FilePath, Fault> {
        let user = self.user();
        let home = self
            .id()
            .map_or_else(|| user.home().to_owned(), |id| self.sandboxes.home_in(&self.about.project, &id, user));
        FilePath::parse(text, &home)
    }

    /// Its files, read as the user that its programs run as.
    pub(in crate::runs) async fn to_read(&self, action: Action) -> Result<Files, Fault> {
        Files::to_read(&self.sandboxes, &self.permit(action)?, self.user()).await
    }

    /// Its files, written as the user that its programs run as.
    pub(in crate::runs) async fn to_write(&self, action: Action) -> Result<Files, Fault> {
        Files::to_write(&self.sandboxes, &self.permit(action)?, self.user()).await
    }

    fn user(&self) -> User {
        self.id().map_or(User::User, |id| self.sandboxes.user_of(&self.about.project, &id))
    }

    /// A secret of the run's project, opened for one call.
    pub(in crate::runs) async fn credential(&self, name: &SecretName) -> Result<Credential, Report> {
        let unavailable = |message: String| failed("secret_unavailable", message, true);
        let found = self.sandboxes.store().secret(self.about.project.clone(), name.clone()).await;
        let Some(secret) = found.map_err(|error| unavailable(error.to_string()))? else {
            let message = format!("the secret {name} does not exist; store it with: saggar secret set {name}");
            return Err(returned(message, true));
        };
        let value = self.sandboxes.vault().open(&secret).await.map_err(|fault| unavailable(fault.to_string()))?;
        let binding = secret.row.binding.clone();
        // No program has a placeholder for it.
        let placeholder = binding.placeholder(random());
        Credential::new(Grant { name: name.clone(), placeholder, binding, value })
            .map_err(|problem| returned(problem.message, true))
    }

    /// A live sandbox, or a report if there is none. The step has not started in that case.
    pub(in crate::runs) async fn ready(&self, task: &Task) -> Result<SandboxId, Report> {
        let Some(id) = self.id() else {
            let lost = self.lost();
            let made = self.make(&task.files).await.map_err(|fault| not_begun(&fault))?;
            return match (lost, made.is_whole) {
                (None, true) => Ok(made.id),
                // An earlier attempt found out, and didn't get as far as to say so.
                (lost, _) => Err(replaced(lost.as_ref(), "", &made)),
            };
        };
        let permit = self.permit(Action::ReadSandbox(id.clone())).map_err(|fault| not_begun(&fault))?;
        match self.sandboxes.check_live(&permit).await {
            Ok(()) => Ok(id),
            Err(fault @ (Fault::Ended { .. } | Fault::NotFound { .. })) => {
                let why = match fault {
                    Fault::Ended { reason: Some(reason), .. } => format!(" ({})", reason.as_str()),
                    _ => String::new(),
                };
                *self.known.lock().unwrap_or_else(PoisonError::into_inner) = None;
                *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(id.clone());
                let made = self.make(&task.files).await.map_err(|fault| not_begun(&fault))?;
                Err(replaced(Some(&id), &why, &made))
            }
            Err(fault) => Err(not_begun(&fault)),
        }
    }

    /// Takes a snapshot of its files. A failure is for the journal: the run goes on without it.
    pub(in crate::runs) async fn snapshot(&self, task: &Task) -> Report {
        let Some(id) = self.id() else { return Report::Kept { snapshot: None } };
        let snapshot = SnapshotId::from_random(task.key.bits());
        let of_run = OfRun { run: self.about.run.clone(), step: task.step };
        let taken = match self.permit(Action::ChangeSandbox(id)) {
            Ok(permit) => self.sandboxes.take_snapshot_of_run(&permit, snapshot, of_run).await,
            Err(fault) => Err(fault),
        };
        match taken {
            Ok(snapshot) => Report::Kept { snapshot: Some(snapshot) },
            Err(fault) => failed("snapshot_failed", fault.to_string(), false),
        }
    }

    /// The sandbox that was lost, and is replaced.
    fn lost(&self) -> Option<SandboxId> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Creates it, or finds the one that an earlier holder of the run created. One that never became ready is
    /// replaced: it had no files.
    async fn make(&self, files: &Restored) -> Result<Made, Fault> {
        self.end_earlier_generations().await?;
        let mut lost = self.lost();
        if lost.is_some() {
            self.leaves_nothing().await?;
        }
        // Without a snapshot of its own, a run goes back to the files that it began with.
        let begun = match files.from {
            None => self.handed_on().await?,
            Some(_) => None,
        };
        let beginning = begun.as_ref().map(|begun| KeptFiles { step: 0, snapshot: begun.snapshot.clone() });
        let mut from = files.from.as_ref().or(beginning.as_ref());
        let mut tries = 0;
        loop {
            let of = begun.as_ref().filter(|_| from.is_some()).map(|begun| &begun.from);
            let made = match self.make_after(lost.as_ref(), from, of).await {
                Err(Fault::NoSuchTemplate(_)) if from.is_some() && begun.is_some() => {
                    self.begins_with_nothing().await?;
                    from = None;
                    continue;
                }
                // It is gone, though no run may be without the snapshots that it needs: better without files than
                // never.
                Err(Fault::NoSuchTemplate(_)) if from.is_some() => {
                    tracing::error!(run_id = %self.about.run, "the snapshot that a run needs is gone");
                    from = None;
                    continue;
                }
                made => made?,
            };
            let id = made.asked.id;
            tries += 1;
            match made.life {
                Life::Ended { ending, .. } if ending.reason == EndReason::StartFailed && tries < TRIES_MAX => {
                    lost = Some(id)
                }
                Life::Creating | Life::Running { .. } | Life::Paused { .. } | Life::Ended { .. } => {
                    *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(id.clone());
                    let is_whole = from.is_some() || files.from.is_none();
                    let older_from = files.older_from.or(files.from.as_ref().filter(|_| !is_whole).map(|_| 1));
                    return Ok(Made { id, is_whole, files: Restored { from: from.cloned(), older_from } });
                }
            }
        }
    }

    /// Waits for a sandbox that is being created: its creator may have died, which takes a while to detect.
    async fn make_after(
        &self,
        lost: Option<&SandboxId>,
        from: Option<&KeptFiles>,
        of: Option<&RunId>,
    ) -> Result<Sandbox, Fault> {
        let labels = [(RUN_LABEL, Some(&self.about.run)), (FILES_OF_LABEL, of)];
        let labels = labels.into_iter().filter_map(|(key, run)| Some((key.to_owned(), run?.to_string()))).collect();
        let (agent, workspace) = (&self.about.agent.sandbox, self.workspace());
        let fs = agent.fs.filter(|_| workspace.is_some());
        let draft = agent.draft();
        let template = from.map(|kept| kept.snapshot.template_name()).or_else(|| draft.template.clone());
        let new = NewSandbox {
            spec: Draft { fs, template, ..draft },
            workspace,
            labels: Labels::parse(labels).unwrap_or_default(),
            // Its lifetime doesn't count while it is paused. At its deadline it ends: paused in the middle of a
            // program, it would block that and the run forever.
            terms: NewTerms { ttl: self.sandboxes.ttl_max(), then: DeadlineAction::Kill, idle_timeout: None },
            auto_resume: true,
            public_ports: Default::default(),
            ingress: Default::default(),
        };
        self.wait_behind_others(lost).await?;
        let permit = self.permit(Action::CreateSandbox)?;
        let (begun, idempotency) = (Instant::now(), self.request(lost));
        loop {
            match self.sandboxes.create_labelled(&permit, new.clone(), idempotency.clone()).await {
                Err(Fault::InProgress) if begun.elapsed() < MAKING_MAX => sleep(LOOK_EVERY).await,
                created => return Ok(created?.sandbox),
            }
        }
    }

    fn workspace(&self) -> Option<AskedWorkspace> {
        let agent = &self.about.agent;
        let own = agent.directory.clone().map(|own| AskedWorkspace::Directory { path: own.path, user: own.user });
        own.or_else(|| agent.sandbox.workspace.clone().map(AskedWorkspace::Named))
    }

    /// Fails while runs that have waited longer need the capacity. An existing sandbox needs none.
    async fn wait_behind_others(&self, lost: Option<&SandboxId>) -> Result<(), Fault> {
        let ahead = self.sandboxes.store().runs_ahead(self.about.run.clone(), now()).await?;
        if ahead == 0 || self.made(self.about.generation, lost).await?.is_some() || self.sandboxes.room().await? > ahead
        {
            return Ok(());
        }
        let what = format!("{ahead} runs are ahead in the queue");
        Err(Fault::Capacity { what, retry_after: LOOK_EVERY })
    }

    /// Pauses it; the next operation resumes it.
    pub(in crate::runs) async fn rest(&self) {
        let Some(id) = self.id() else { return };
        let paused = match self.permit(Action::ChangeSandbox(id.clone())) {
            Ok(permit) => self.sandboxes.pause(&permit, Keep::Memory).await.map(drop),
            Err(fault) => Err(fault),
        };
        // If pausing isn't possible it keeps running; an ended one needs no pause.
        if let Err(fault) = paused {
            tracing::debug!(sandbox = %id, error = %fault, "pausing a run's sandbox failed");
        }
    }

    /// Whether there is a sandbox to end, or may be: an earlier holder of the run may have created one and died
    /// before recording it.
    pub(in crate::runs) fn may_be(&self) -> bool {
        (!self.is_kept || self.is_reused())
            && (self.id().is_some() || self.about.agent.tools.keys().any(|name| needs_a_sandbox(name)))
    }

    /// Leaves its files for the next run if its agent says so, and ends it unless it is to be kept. `false` if that failed.
    pub(in crate::runs) async fn end(&self, over: Over) -> bool {
        if !self.may_be() {
            return true;
        }
        self.let_go(over).await.inspect_err(could_not).is_ok()
    }

    async fn let_go(&self, over: Over) -> Result<(), Fault> {
        self.leave_files(over).await?;
        if self.is_kept {
            return Ok(());
        }
        self.end_earlier_generations().await?;
        self.end_of(self.about.generation, self.id()).await
    }

    /// Ends the sandboxes that the run had before it was rolled back. They are no longer in use, whether or not others
    /// are kept.
    pub(in crate::runs) async fn end_earlier_generations(&self) -> Result<(), Fault> {
        let about = &self.about;
        for generation in &about.earlier_generations {
            let is_last = about.earlier_generations.last() == Some(generation);
            let known = about.earlier_sandbox.clone().filter(|_| is_last);
            self.end_of(*generation, known).await?;
        }
        Ok(())
    }

    /// Ends the sandbox of a generation and those that replaced it.
    async fn end_of(&self, generation: u32, known: Option<SandboxId>) -> Result<(), Fault> {
        let mut next = match known {
            Some(id) => Some(id),
            None => self.made(generation, None).await?,
        };
        while let Some(id) = next {
            let permit = self.permit(Action::KillSandbox(id.clone()))?;
            match self.sandboxes.kill(&permit).await {
                // A sandbox without a row ended long ago.
                Ok(_) | Err(Fault::NotFound { .. }) => {}
                Err(fault) => return Err(fault),
            }
            // It may have been lost and replaced by a worker that died before recording that.
            next = self.made(generation, Some(&id)).await?;
        }
        Ok(())
    }

    /// The sandbox that was created for the run, or as the replacement of that one.
    async fn made(&self, generation: u32, lost: Option<&SandboxId>) -> Result<Option<SandboxId>, Fault> {
        let Some(request) = self.request_of(generation, lost) else { return Ok(None) };
        let project = self.about.project.clone();
        match self.sandboxes.store().earlier_request(project, request, now()).await? {
            Some(Insertion::Replayed(id)) => Ok(Some(id)),
            Some(Insertion::Inserted | Insertion::Mismatch | Insertion::NoRoom) | None => Ok(None),
        }
    }

    fn request(&self, lost: Option<&SandboxId>) -> Option<Idempotency> {
        self.request_of(self.about.generation, lost)
    }

    /// The request for the run's sandbox, or for the replacement of that one: the same from every worker.
    fn request_of(&self, generation: u32, lost: Option<&SandboxId>) -> Option<Idempotency> {
        let mut key = format!("{}.{generation}", self.about.run);
        if let Some(lost) = lost {
            key = format!("{key}.{lost}");
        }
        let request_hash = RequestHash::of(key.as_bytes());
        IdempotencyKey::parse(&key).map(|key| Idempotency { key, request_hash })
    }
}

/// A sandbox, and what it was started with.
struct Made {
    id: SandboxId,
    files: Restored,
    /// Whether it has the files that it should have.
    is_whole: bool,
}

/// Tells the model that its sandbox is another one, and which files it has.
fn replaced(lost: Option<&SandboxId>, why: &str, made: &Made) -> Report {
    let (id, files) = (&made.id, &made.files);
    let lost = match lost {
        Some(lost) => format!("sandbox {lost} has ended"),
        None => "the snapshot of its files is gone".to_owned(),
    };
    let said = match (&files.from, files.older_from) {
        (Some(kept), Some(since)) => format!(
            "nothing was done: {lost}{why}; sandbox {id} replaces it, with its files as they were at step {}: changes of \
             files since step {since} are gone",
            kept.step
        ),
        (Some(kept), None) => format!(
            "nothing was done: {lost}{why}; sandbox {id} replaces it, with its files as they were at step {}, and none \
             has changed since",
            kept.step
        ),
        (None, _) => {
            format!("nothing was done: {lost} and its files are gone{why}; the empty sandbox {id} replaces it")
        }
    };
    match returned(said, true) {
        Report::Returned { result, snapshot } => {
            let restored = Some(Box::new(files.clone()));
            Report::Returned { result: ToolResult { restored, ..result }, snapshot }
        }
        other => other,
    }
}

fn needs_a_sandbox(tool: &str) -> bool {
    Tool::find(tool).is_some_and(|tool| tool.needs == Needs::Sandbox)
}

fn could_not(fault: &Fault) {
    tracing::warn!(error = %fault, "ending the sandbox of a finished run failed");
}
