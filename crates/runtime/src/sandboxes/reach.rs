//! Reaches a live sandbox: checks its project, resumes it if needed, and asks its supervisor.

use std::future::Future;
use std::sync::Arc;

use saggar_domain::{ProjectId, SandboxId, SandboxState, TemplateName, User};
use saggar_supervisor::control::{Op, Reply, Target};
use tokio::net::UnixStream;

use super::Sandboxes;
use super::live::Live;
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::supervisor::{Connection, ControlError};

impl Sandboxes {
    /// A live sandbox of this project. Reports an ended one as such, and another project's as absent.
    pub(crate) async fn live(&self, project: &ProjectId, id: &SandboxId) -> Result<Arc<Live>, Fault> {
        match self.inner.register.get(id) {
            Some(live) if live.project == *project => {
                // Another process of this machine may have resumed it. While its state is being changed here, none has.
                if live.is_alone()
                    && let Ok(_unchanged) = live.accounted.try_lock()
                {
                    self.learn_rest(&live).await?;
                }
                Ok(live)
            }
            Some(_) => Err(Fault::no_sandbox(id)),
            // Another process of this machine may have created it.
            None if self.adopt_late(project, id).await => {
                self.inner.register.get(id).ok_or_else(|| Fault::Ended { id: id.clone(), reason: None })
            }
            None => Err(self.why_not_live(project, id).await),
        }
    }

    /// Sends one request, resuming the sandbox if traffic does that.
    pub(crate) async fn question(&self, project: &ProjectId, id: &SandboxId, op: Op) -> Result<Reply, Fault> {
        let live = self.live(project, id).await?;
        self.awake(&live, || Connection::question(&live.socket, op.clone())).await
    }

    /// Sends a request that a paused sandbox can answer, without resuming it.
    pub(crate) async fn question_asleep(&self, project: &ProjectId, id: &SandboxId, op: Op) -> Result<Reply, Fault> {
        let live = self.live(project, id).await?;
        if live.is_alone() {
            return self.described(&live, op).await.map(|description| Reply::Described(Box::new(description)));
        }
        match Connection::question(&live.socket, op).await.map_err(|error| Fault::from_control(error, id)) {
            Err(Fault::Ended { .. }) => Err(self.ended_fault(project, id).await),
            other => other,
        }
    }

    /// The project of a sandbox, if this port needs no token.
    pub fn public_port(&self, id: &SandboxId, port: u16) -> Option<ProjectId> {
        self.inner.register.get(id).filter(|live| live.is_public(port)).map(|live| live.project.clone())
    }

    /// The project of a live sandbox, for clients with another kind of proof.
    pub fn project_of(&self, id: &SandboxId) -> Option<ProjectId> {
        self.inner.register.get(id).map(|live| live.project.clone())
    }

    /// A sandbox's default user. For a sandbox that is gone it doesn't matter.
    pub fn default_user(&self, permit: &Permit) -> User {
        permit.sandbox().map_or(User::User, |id| self.user_of(permit.project(), id))
    }

    pub(crate) fn user_of(&self, project: &ProjectId, id: &SandboxId) -> User {
        let live = self.inner.register.get(id);
        live.filter(|live| live.project == *project).map_or(User::User, |live| live.user)
    }

    /// The user of this name in a sandbox: one of the two of every sandbox, or the one that its template names.
    pub fn named_user(&self, permit: &Permit, name: &str) -> Option<User> {
        let live = permit.sandbox().ok().and_then(|id| self.inner.register.get(id));
        let live = live.filter(|live| live.project == *permit.project());
        match live.as_ref().and_then(|live| live.account()) {
            Some(account) if account.name == name => Some(User::Template),
            Some(_) | None => User::parse(name).filter(|user| *user != User::Template),
        }
    }

    /// Where relative paths of a user begin.
    pub fn home_of(&self, permit: &Permit, user: User) -> String {
        permit.sandbox().map_or_else(|_| user.home().to_owned(), |id| self.home_in(permit.project(), id, user))
    }

    pub(crate) fn home_in(&self, project: &ProjectId, id: &SandboxId, user: User) -> String {
        let live = self.inner.register.get(id).filter(|live| live.project == *project && user == User::Template);
        let account = live.as_ref().and_then(|live| live.account());
        account.map_or(user.home(), |account| account.home.as_str()).to_owned()
    }

    /// The template that a sandbox was made from. For a sandbox that is gone it doesn't matter.
    pub fn template_of(&self, permit: &Permit) -> TemplateName {
        let live = permit.sandbox().ok().and_then(|id| self.inner.register.get(id));
        live.filter(|live| live.project == *permit.project()).map(|live| live.template()).unwrap_or_default()
    }

    /// Fails unless the permit's sandbox is live and belongs to its project.
    pub async fn check_live(&self, permit: &Permit) -> Result<(), Fault> {
        self.live(permit.project(), permit.sandbox()?).await.map(drop)
    }

    /// Fails unless the sandbox runs. Resumes it if traffic does that.
    pub async fn check_runs(&self, permit: &Permit) -> Result<(), Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_)))?;
        let live = self.live(permit.project(), permit.sandbox()?).await?;
        match self.described(&live, Op::Describe).await?.state {
            SandboxState::Running => Ok(()),
            SandboxState::Paused => match live.wake_terms() {
                Some(terms) => self.wake(&live, terms).await,
                None => Err(Fault::Paused { id: live.id.clone() }),
            },
            SandboxState::Creating | SandboxState::Ending | SandboxState::Ended => {
                Err(self.ended_fault(&live.project, &live.id).await)
            }
        }
    }

    /// Sends a request, and keeps the connection for what follows.
    pub(crate) async fn conversation(
        &self,
        project: &ProjectId,
        id: &SandboxId,
        op: Op,
    ) -> Result<(Reply, Connection), Fault> {
        let live = self.live(project, id).await?;
        self.awake(&live, || async {
            let mut connection = Connection::ask(&live.socket, op.clone()).await?;
            let reply = connection.answer().await?;
            Ok((reply, connection))
        })
        .await
    }

    /// Opens a byte stream into the sandbox.
    pub(crate) async fn open_stream(
        &self,
        project: &ProjectId,
        id: &SandboxId,
        target: Target,
        user: User,
    ) -> Result<UnixStream, Fault> {
        let live = self.live(project, id).await?;
        self.awake(&live, || async { Connection::ask(&live.socket, Op::Open { target, user }).await?.opened().await })
            .await
    }

    /// Does something that needs a running sandbox. A paused one is resumed once, if traffic does that, and asked
    /// again.
    async fn awake<T, F, Fut>(&self, live: &Arc<Live>, ask: F) -> Result<T, Fault>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, ControlError>>,
    {
        let fault = |error| Fault::from_control(error, &live.id);
        if live.is_alone() {
            let Some(terms) = live.wake_terms() else { return Err(Fault::Paused { id: live.id.clone() }) };
            self.wake(live, terms).await?;
        }
        match ask().await.map_err(fault) {
            Err(Fault::Paused { id }) => {
                let Some(terms) = live.wake_terms() else { return Err(Fault::Paused { id }) };
                self.wake(live, terms).await?;
                ask().await.map_err(fault)
            }
            Err(Fault::Ended { id, .. }) => Err(self.ended_fault(&live.project, &id).await),
            other => other,
        }
    }
}
