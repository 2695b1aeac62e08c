//! Changes to a live sandbox: its lifetime, its labels, pausing and resuming.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::{
    Code, DeadlineAction, Ingress, Labels, Problem, ProjectId, PublicPorts, SandboxId, SandboxState, Timestamp,
};
use saggar_store::{Change, Lifetime, Sandbox, SandboxPatch};
use saggar_supervisor::control::{Description, Op, Reply, Terms};

use super::live::Live;
use super::rest::{Keep, Rest};
use super::{Sandboxes, now, own_labels};
use crate::fail_point::pass;
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::supervisor::{Connection, ControlError};

/// A new lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewTerms {
    pub ttl: Duration,
    /// The action at the deadline.
    pub then: DeadlineAction,
    /// Maximum time without activity.
    pub idle_timeout: Option<Duration>,
}

impl NewTerms {
    /// Rejects what the operator doesn't allow.
    pub(super) fn check(&self, ttl_max: Duration) -> Result<Terms, Fault> {
        if self.ttl > ttl_max {
            return Err(Fault::Refused(Problem::new(
                Code::InvalidValue,
                format!("a lifetime of {} s is longer than this server allows", self.ttl.as_secs()),
                format!("request at most {} s, and extend it while the sandbox is in use", ttl_max.as_secs()),
            )));
        }
        Ok(self.terms())
    }

    pub(super) fn terms(&self) -> Terms {
        Terms { ttl_ms: Some(millis(self.ttl)), then: self.then, idle_ms: self.idle_timeout.map(millis) }
    }

    pub(super) fn lifetime(&self, from: Timestamp) -> Lifetime {
        Lifetime { deadline: Some(from.after(self.ttl)), on_deadline: self.then, idle_timeout: self.idle_timeout }
    }
}

/// Changes; fields that are `None` stay unchanged.
#[derive(Clone, Debug, Default)]
pub struct Patch {
    pub terms: Option<NewTerms>,
    /// Replaces all labels.
    pub labels: Option<Labels>,
    /// Whether traffic resumes it.
    pub auto_resume: Option<bool>,
    /// Replaces all ports that need no token.
    pub public_ports: Option<PublicPorts>,
    /// Replaces which ports can be reached, and how.
    pub ingress: Option<Ingress>,
}

/// A future whose type doesn't name what is in it.
type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

impl Sandboxes {
    pub async fn patch(&self, permit: &Permit, patch: Patch) -> Result<Sandbox, Fault> {
        let live = self.changeable(permit).await?;
        let terms = patch.terms.map(|terms| terms.check(self.ttl_max())).transpose()?;
        let labels = match patch.labels {
            Some(given) => {
                let old = self.row_of(&live.project, &live.id).await?.asked.labels;
                Some(own_labels::after_change(given, &old).map_err(Fault::Refused)?)
            }
            None => None,
        };
        self.check_deadline(&live, terms).await?;
        if let Some(terms) = terms.filter(|_| !live.is_alone()) {
            self.described(&live, Op::SetTerms { terms }).await?;
        }
        let rows = SandboxPatch {
            lifetime: patch.terms.map(|terms| terms.lifetime(now())),
            labels,
            auto_resume: patch.auto_resume,
            public_ports: patch.public_ports.clone(),
            ingress: patch.ingress.clone(),
        };
        self.store().patch_sandbox(live.id.clone(), rows).await?;
        if let Some(public_ports) = patch.public_ports {
            live.set_public_ports(public_ports);
        }
        if let Some(ingress) = patch.ingress {
            live.set_ingress(ingress);
        }
        let sandbox = self.row_of(&live.project, &live.id).await?;
        // A resume by traffic uses the lifetime that was last set.
        live.set_wake(wake_of(&sandbox, terms.or(live.wake_terms())));
        Ok(sandbox)
    }

    /// The sandbox's row, before a change.
    pub async fn current(&self, permit: &Permit) -> Result<Sandbox, Fault> {
        let live = self.changeable(permit).await?;
        self.row_of(&live.project, &live.id).await
    }

    /// Freezes a sandbox. One that is already frozen stays so. Continues to its end even if the caller is cancelled.
    pub async fn pause(&self, permit: &Permit, keep: Keep) -> Result<Sandbox, Fault> {
        let live = self.changeable(permit).await?;
        let this = self.clone();
        let work = tokio::spawn(async move {
            this.pause_live(&live, keep).await?;
            this.row_of(&live.project, &live.id).await
        });
        work.await.map_err(|error| Fault::internal("pausing a sandbox", error))?
    }

    async fn pause_live(&self, live: &Arc<Live>, keep: Keep) -> Result<(), Fault> {
        self.check_keep(live, keep).await?;
        let mut accounted = live.accounted.lock().await;
        let _alone = self.begin_change(live).await?;
        if live.is_alone() {
            return Ok(());
        }
        let was_running = self.described(live, Op::Describe).await?.state == SandboxState::Running;
        if was_running {
            // Another process has resumed it: what is kept is of an earlier pause.
            self.forget_rest(live).await?;
        }
        let description = self.described(live, Op::Pause).await?;
        pass("pause/frozen");
        self.store().change_sandbox(live.id.clone(), Change::Paused { at: now() }).await?;
        pass("pause/row");
        *accounted = description.last_event;
        match keep {
            Keep::Memory => self.keep_files_or_warn(live).await,
            Keep::Files => {
                let kept = match self.keep_files(live, keep).await {
                    Ok(()) => self.leave_alone(live).await,
                    Err(fault) => Err(fault),
                };
                if kept.is_err() && was_running {
                    self.go_on_within(live, None, &mut accounted).await?;
                }
                kept?;
            }
        }
        Ok(())
    }

    /// Resumes a sandbox, optionally with a new lifetime.
    pub async fn resume(&self, permit: &Permit, terms: Option<NewTerms>) -> Result<Sandbox, Fault> {
        let live = self.changeable(permit).await?;
        let checked = terms.map(|terms| terms.check(self.ttl_max())).transpose()?;
        self.check_deadline(&live, checked).await?;
        self.go_on(&live, checked).await?;
        self.row_of(&live.project, &live.id).await
    }

    /// Resumes a paused sandbox because of traffic. Boxed, because a resume may start programs, which is traffic too.
    pub(super) fn wake<'a>(&'a self, live: &'a Arc<Live>, terms: Terms) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.go_on(live, Some(terms)))
    }

    /// Resumes a sandbox of which only its files are left.
    pub(crate) async fn awaken(&self, live: &Arc<Live>) -> Result<(), Fault> {
        if live.is_alone() { self.go_on(live, live.wake_terms()).await } else { Ok(()) }
    }

    /// Continues to its end even if the caller is cancelled.
    async fn go_on(&self, live: &Arc<Live>, terms: Option<Terms>) -> Result<(), Fault> {
        let (this, live) = (self.clone(), Arc::clone(live));
        let work = tokio::spawn(async move {
            let mut accounted = live.accounted.lock().await;
            let _alone = this.begin_change(&live).await?;
            this.go_on_within(&live, terms, &mut accounted).await
        });
        work.await.map_err(|error| Fault::internal("resuming a sandbox", error))?
    }

    async fn go_on_within(&self, live: &Arc<Live>, terms: Option<Terms>, accounted: &mut u64) -> Result<(), Fault> {
        if let Some(Rest::Alone(snapshot)) = live.rest() {
            return self.rise(live, snapshot, terms).await;
        }
        let row = self.row_of(&live.project, &live.id).await?;
        self.forget_rest(live).await?;
        pass("resume/forgotten");
        let description = self.described(live, Op::Resume { terms }).await?;
        pass("resume/thawed");
        self.store().change_sandbox(live.id.clone(), Change::Resumed { at: now() }).await?;
        pass("resume/row");
        let wanted = terms.map_or(row.asked.lifetime.on_deadline, |terms| terms.then);
        let lifetime = Lifetime {
            deadline: description.ttl_left_ms.map(|left| now().after(Duration::from_millis(left))),
            // Its supervisor doesn't know what becomes of it once it is frozen.
            on_deadline: if wanted.of_supervisor() == description.then { wanted } else { description.then },
            idle_timeout: description.idle_ms.map(Duration::from_millis),
        };
        let patch = SandboxPatch { lifetime: Some(lifetime), ..SandboxPatch::default() };
        self.store().patch_sandbox(live.id.clone(), patch).await?;
        pass("resume/terms");
        *accounted = description.last_event;
        Ok(())
    }

    /// The supervisor's current description.
    pub async fn describe(&self, permit: &Permit) -> Result<Description, Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_)))?;
        let live = self.live(permit.project(), permit.sandbox()?).await?;
        self.described(&live, Op::Describe).await
    }

    pub(crate) async fn described(&self, live: &Live, op: Op) -> Result<Description, Fault> {
        let fault = |error| Fault::from_control(error, &live.id);
        if live.is_alone() {
            return match op {
                Op::Describe => self.described_alone(live).await,
                _ => Err(Fault::Paused { id: live.id.clone() }),
            };
        }
        match Connection::question(&live.socket, op).await.map_err(fault) {
            Ok(Reply::Described(description)) if description.state == SandboxState::Ending => {
                Err(self.ended_fault(&live.project, &live.id).await)
            }
            Ok(Reply::Described(description)) => {
                live.learn(&description);
                Ok(*description)
            }
            Ok(_) => Err(fault(ControlError::Protocol("another answer than `described`".to_owned()))),
            Err(Fault::Ended { .. }) => Err(self.ended_fault(&live.project, &live.id).await),
            Err(other) => Err(other),
        }
    }

    pub(crate) async fn changeable(&self, permit: &Permit) -> Result<Arc<Live>, Fault> {
        permit.check(|action| matches!(action, Action::ChangeSandbox(_)))?;
        self.live(permit.project(), permit.sandbox()?).await
    }

    pub(crate) async fn row_of(&self, project: &ProjectId, id: &SandboxId) -> Result<Sandbox, Fault> {
        self.store().sandbox(project.clone(), id.clone()).await?.ok_or_else(|| Fault::no_sandbox(id))
    }
}

/// The lifetime that a sandbox gets when traffic resumes it; `None` if it doesn't.
pub(super) fn wake_of(sandbox: &Sandbox, terms: Option<Terms>) -> Option<Terms> {
    let asked = &sandbox.asked;
    let otherwise = || {
        let ttl =
            asked.lifetime.deadline.map(|deadline| deadline.as_millis().saturating_sub(asked.created_at.as_millis()));
        Terms { ttl_ms: ttl, then: asked.lifetime.on_deadline, idle_ms: asked.lifetime.idle_timeout.map(millis) }
    };
    asked.auto_resume.then(|| terms.unwrap_or_else(otherwise))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
