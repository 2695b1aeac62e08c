//! Reaching a sandbox that lives: whose it is, waking it if it sleeps, and asking its supervisor.

use std::future::Future;
use std::sync::Arc;

use saggar_domain::{ProjectId, SandboxId, SandboxState, User};
use saggar_supervisor::control::{Op, Reply, Target};
use tokio::net::UnixStream;

use super::Sandboxes;
use super::live::Live;
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::supervisor::{Connection, ControlError};

impl Sandboxes {
    /// A sandbox of this project that lives. One that has ended says so; another project's is not there.
    pub(crate) async fn live(&self, project: &ProjectId, id: &SandboxId) -> Result<Arc<Live>, Fault> {
        match self.inner.register.get(id) {
            Some(live) if live.project == *project => Ok(live),
            Some(_) => Err(Fault::no_sandbox(id)),
            // Another process of this machine may have made it.
            None if self.adopt_late(project, id).await => {
                self.inner.register.get(id).ok_or_else(|| Fault::Ended { id: id.clone(), reason: None })
            }
            None => Err(self.why_not_live(project, id).await),
        }
    }

    /// Asks one question, waking the sandbox if that is what traffic does.
    pub(crate) async fn question(&self, project: &ProjectId, id: &SandboxId, op: Op) -> Result<Reply, Fault> {
        let live = self.live(project, id).await?;
        self.awake(&live, || Connection::question(&live.socket, op.clone())).await
    }

    /// Asks what can be answered while it sleeps, and wakes nobody.
    pub(crate) async fn question_asleep(&self, project: &ProjectId, id: &SandboxId, op: Op) -> Result<Reply, Fault> {
        let live = self.live(project, id).await?;
        match Connection::question(&live.socket, op).await.map_err(|error| Fault::from_control(error, id)) {
            Err(Fault::Ended { .. }) => Err(self.ended_fault(project, id).await),
            other => other,
        }
    }

    /// Whether anybody may use a port of a sandbox, and whose that is.
    pub fn public_port(&self, id: &SandboxId, port: u16) -> Option<ProjectId> {
        self.inner.register.get(id).filter(|live| live.is_public(port)).map(|live| live.project.clone())
    }

    /// Whose a sandbox is that lives, for whoever has a proof of another kind.
    pub fn project_of(&self, id: &SandboxId) -> Option<ProjectId> {
        self.inner.register.get(id).map(|live| live.project.clone())
    }

    /// Who acts in a sandbox unless somebody says otherwise. Of one that is gone nobody will act in it anyway.
    pub fn default_user(&self, permit: &Permit) -> User {
        let live = permit.sandbox().ok().and_then(|id| self.inner.register.get(id));
        live.filter(|live| live.project == *permit.project()).map_or(User::User, |live| live.user)
    }

    /// Refuses unless the sandbox that a permit is for lives, and is that project's.
    pub async fn check_live(&self, permit: &Permit) -> Result<(), Fault> {
        self.live(permit.project(), permit.sandbox()?).await.map(drop)
    }

    /// Refuses unless the sandbox runs. One that traffic wakes is woken.
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

    /// Asks, and keeps the connection for what follows the answer.
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

    /// Does something that needs the sandbox to run. Paused, it is woken once if traffic does that, and asked again.
    async fn awake<T, F, Fut>(&self, live: &Live, ask: F) -> Result<T, Fault>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, ControlError>>,
    {
        let fault = |error| Fault::from_control(error, &live.id);
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
