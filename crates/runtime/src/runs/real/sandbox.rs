//! The sandbox of a run: made when it is first needed, found again by whoever takes the run over, asleep while nothing is to be done.
//!
//! It is asked for by a key that follows from the run and its generation, so two workers that both need it get the same one. A sandbox that
//! was lost is replaced, and the agent is told: its files are gone, and that is not for us to hide.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use saggar_domain::{DeadlineAction, Draft, EndReason, Labels, SandboxId};
use saggar_engine::Report;
use saggar_store::{Idempotency, IdempotencyKey, Insertion, Life, RequestHash, Sandbox};
use tokio::time::{Instant, sleep};

use super::super::effects::About;
use super::{not_begun, returned};
use crate::fault::Fault;
use crate::permit::{Action, Permit, Subject};
use crate::sandboxes::{NewSandbox, NewTerms, Sandboxes, now};

/// The tools that need a sandbox.
const IN_A_SANDBOX: [&str; 2] = ["shell", "files"];

/// How long one that is being made is waited for: longer than it takes to give it up.
const MAKING_MAX: Duration = Duration::from_secs(20);
/// How often it is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often one that never came to life is replaced.
const TRIES_MAX: u32 = 8;

/// A run's sandbox.
#[derive(Debug)]
pub(super) struct RunSandbox {
    sandboxes: Sandboxes,
    about: About,
    is_kept: bool,
    known: Mutex<Option<SandboxId>>,
    /// The one that was lost: its replacement is another request.
    lost: Mutex<Option<SandboxId>>,
}

impl RunSandbox {
    pub(super) fn new(sandboxes: Sandboxes, about: About, is_kept: bool) -> Self {
        let known = Mutex::new(about.sandbox.clone());
        Self { sandboxes, about, is_kept, known, lost: Mutex::default() }
    }

    /// Which, as far as is known.
    pub(super) fn id(&self) -> Option<SandboxId> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn sandboxes(&self) -> &Sandboxes {
        &self.sandboxes
    }

    /// Leave to do something on the run's behalf.
    pub(super) fn permit(&self, action: Action) -> Result<Permit, Fault> {
        let subject = Subject::Run { run: self.about.run.clone(), project: self.about.project.clone() };
        Permit::decide(&subject, action)
    }

    /// A sandbox that lives, and what to report where there is none. Nothing of the step has begun then.
    pub(super) async fn ready(&self) -> Result<SandboxId, Report> {
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
                        "nothing was done: sandbox {id} has ended with its files{why}; {made} is there in its place, empty"
                    ),
                    true,
                ))
            }
            Err(fault) => Err(not_begun(&fault)),
        }
    }

    /// Makes it, or finds the one that an earlier holder of the run made. One that never came to life is replaced: nothing was lost with it.
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

    /// Waits for one that is being made: its maker may have died, and then it takes a while until that is sure.
    async fn make_after(&self, lost: Option<&SandboxId>) -> Result<Sandbox, Fault> {
        let new = NewSandbox {
            spec: Draft::default(),
            labels: Labels::parse([("run".to_owned(), self.about.run.to_string())].into()).unwrap_or_default(),
            // Its time doesn't pass while it sleeps. When it is up, it ends: put to sleep under a program, it would keep that and the run for ever.
            terms: NewTerms { ttl: self.sandboxes.ttl_max(), then: DeadlineAction::Kill, idle_timeout: None },
            auto_resume: true,
            public_ports: Default::default(),
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

    /// Refuses while runs that have waited for longer take what room there is. One that is there already needs none.
    async fn wait_behind_others(&self, lost: Option<&SandboxId>) -> Result<(), Fault> {
        let ahead = self.sandboxes.store().runs_ahead(self.about.run.clone(), now()).await?;
        if ahead == 0 || self.made(lost).await?.is_some() || self.sandboxes.room().await? > ahead {
            return Ok(());
        }
        let what = format!("{ahead} runs have waited for longer");
        Err(Fault::Capacity { what, retry_after: LOOK_EVERY })
    }

    /// Puts it to sleep; whatever is next done in it wakes it.
    pub(super) async fn rest(&self) {
        let Some(id) = self.id() else { return };
        let paused = match self.permit(Action::ChangeSandbox(id.clone())) {
            Ok(permit) => self.sandboxes.pause(&permit).await.map(drop),
            Err(fault) => Err(fault),
        };
        // Where nothing can be frozen it just goes on; one that has ended needs no sleep.
        if let Err(fault) = paused {
            tracing::debug!(sandbox = %id, error = %fault, "a run's sandbox can't be put to sleep");
        }
    }

    /// Whether there is one to be ended, or may be: whoever held the run before may have made one and not lived to write it down.
    pub(super) fn may_be(&self) -> bool {
        !self.is_kept
            && (self.id().is_some() || IN_A_SANDBOX.iter().any(|tool| self.about.agent.tools.contains_key(*tool)))
    }

    /// Ends it, unless it is to be kept. `false` where that failed.
    pub(super) async fn end(&self) -> bool {
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
            // One that is forgotten has ended long ago.
            if let Err(fault) = ended
                && !matches!(fault, Fault::NotFound { .. })
            {
                return could_not(&fault);
            }
            // It may have been lost and replaced by somebody who did not live to write that down.
            next = match self.made(Some(&id)).await {
                Ok(made) => made,
                Err(fault) => return could_not(&fault),
            };
        }
        true
    }

    /// The sandbox that was made for the run, or in the place of that one.
    async fn made(&self, lost: Option<&SandboxId>) -> Result<Option<SandboxId>, Fault> {
        let Some(request) = self.request(lost) else { return Ok(None) };
        let project = self.about.project.clone();
        match self.sandboxes.store().earlier_request(project, request, now()).await? {
            Some(Insertion::Replayed(id)) => Ok(Some(id)),
            Some(Insertion::Inserted | Insertion::Mismatch | Insertion::NoRoom) | None => Ok(None),
        }
    }

    /// The request for the run's sandbox, or for another in the place of that one: the same whoever makes it.
    fn request(&self, lost: Option<&SandboxId>) -> Option<Idempotency> {
        let mut key = format!("{}.{}", self.about.run, self.about.generation);
        if let Some(lost) = lost {
            key = format!("{key}.{lost}");
        }
        let request_hash = RequestHash::of(key.as_bytes());
        IdempotencyKey::parse(&key).map(|key| Idempotency { key, request_hash })
    }
}

fn could_not(fault: &Fault) -> bool {
    tracing::warn!(error = %fault, "the sandbox of a run that is over can't be ended");
    false
}
