//! The sandbox of a run: created when first needed, found again by the next worker of the run, paused while the run
//! is idle.
//!
//! It is requested with an idempotency key derived from the run and its generation, so two workers that both need it
//! get the same one. A lost sandbox is replaced, and the agent is told that its files are gone.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use saggar_domain::secret::{Grant, SecretName};
use saggar_domain::{DeadlineAction, Draft, EndReason, Labels, SandboxId};
use saggar_egress::secret::Credential;
use saggar_engine::Report;
use saggar_store::{Idempotency, IdempotencyKey, Insertion, Life, RequestHash, Sandbox};
use tokio::time::{Instant, sleep};

use super::report::{failed, not_begun, returned};
use super::tool::{Needs, Tool};
use crate::fault::Fault;
use crate::permit::{Action, Permit, Subject};
use crate::runs::effects::About;
use crate::sandboxes::{AskedWorkspace, NewSandbox, NewTerms, RUN_LABEL, Sandboxes, now, random};

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
    pub(in crate::runs) async fn ready(&self) -> Result<SandboxId, Report> {
        let id = match self.id() {
            Some(id) => id,
            None => self.make().await.map_err(|fault| not_begun(&fault))?,
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
                let made = self.make().await.map_err(|fault| not_begun(&fault))?;
                Err(returned(
                    format!(
                        "nothing was done: sandbox {id} has ended and its files are gone{why}; the empty sandbox {made} replaces it"
                    ),
                    true,
                ))
            }
            Err(fault) => Err(not_begun(&fault)),
        }
    }

    /// Creates it, or finds the one that an earlier holder of the run created. One that never became ready is
    /// replaced: it had no files.
    async fn make(&self) -> Result<SandboxId, Fault> {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut tries = 0;
        loop {
            let made = self.make_after(lost.as_ref()).await?;
            let id = made.asked.id;
            tries += 1;
            match made.life {
                Life::Ended { ending, .. } if ending.reason == EndReason::StartFailed && tries < TRIES_MAX => {
                    lost = Some(id)
                }
                Life::Creating | Life::Running { .. } | Life::Paused { .. } | Life::Ended { .. } => {
                    *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(id.clone());
                    return Ok(id);
                }
            }
        }
    }

    /// Waits for a sandbox that is being created: its creator may have died, which takes a while to detect.
    async fn make_after(&self, lost: Option<&SandboxId>) -> Result<Sandbox, Fault> {
        let (agent, workspace) = (&self.about.agent.sandbox, self.workspace());
        let fs = agent.fs.filter(|_| workspace.is_some());
        let new = NewSandbox {
            spec: Draft { fs, ..agent.draft() },
            workspace,
            labels: Labels::parse([(RUN_LABEL.to_owned(), self.about.run.to_string())].into()).unwrap_or_default(),
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
            match self.sandboxes.create(&permit, new.clone(), idempotency.clone()).await {
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
        if ahead == 0 || self.made(lost).await?.is_some() || self.sandboxes.room().await? > ahead {
            return Ok(());
        }
        let what = format!("{ahead} runs are ahead in the queue");
        Err(Fault::Capacity { what, retry_after: LOOK_EVERY })
    }

    /// Pauses it; the next operation resumes it.
    pub(in crate::runs) async fn rest(&self) {
        let Some(id) = self.id() else { return };
        let paused = match self.permit(Action::ChangeSandbox(id.clone())) {
            Ok(permit) => self.sandboxes.pause(&permit).await.map(drop),
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
        !self.is_kept && (self.id().is_some() || self.about.agent.tools.keys().any(|name| needs_a_sandbox(name)))
    }

    /// Ends it, unless it is to be kept. `false` if that failed.
    pub(in crate::runs) async fn end(&self) -> bool {
        if !self.may_be() {
            return true;
        }
        let mut next = match self.id() {
            Some(id) => Some(id),
            None => match self.made(None).await {
                Ok(made) => made,
                Err(fault) => return could_not(&fault),
            },
        };
        while let Some(id) = next {
            let ended = match self.permit(Action::KillSandbox(id.clone())) {
                Ok(permit) => self.sandboxes.kill(&permit).await.map(drop),
                Err(fault) => Err(fault),
            };
            // A sandbox without a row ended long ago.
            if let Err(fault) = ended
                && !matches!(fault, Fault::NotFound { .. })
            {
                return could_not(&fault);
            }
            // It may have been lost and replaced by a worker that died before recording that.
            next = match self.made(Some(&id)).await {
                Ok(made) => made,
                Err(fault) => return could_not(&fault),
            };
        }
        true
    }

    /// The sandbox that was created for the run, or as the replacement of that one.
    async fn made(&self, lost: Option<&SandboxId>) -> Result<Option<SandboxId>, Fault> {
        let Some(request) = self.request(lost) else { return Ok(None) };
        let project = self.about.project.clone();
        match self.sandboxes.store().earlier_request(project, request, now()).await? {
            Some(Insertion::Replayed(id)) => Ok(Some(id)),
            Some(Insertion::Inserted | Insertion::Mismatch | Insertion::NoRoom) | None => Ok(None),
        }
    }

    /// The request for the run's sandbox, or for the replacement of that one: the same from every worker.
    fn request(&self, lost: Option<&SandboxId>) -> Option<Idempotency> {
        let mut key = format!("{}.{}", self.about.run, self.about.generation);
        if let Some(lost) = lost {
            key = format!("{key}.{lost}");
        }
        let request_hash = RequestHash::of(key.as_bytes());
        IdempotencyKey::parse(&key).map(|key| Idempotency { key, request_hash })
    }
}

fn needs_a_sandbox(tool: &str) -> bool {
    Tool::find(tool).is_some_and(|tool| tool.needs == Needs::Sandbox)
}

fn could_not(fault: &Fault) -> bool {
    tracing::warn!(error = %fault, "ending the sandbox of a finished run failed");
    false
}
