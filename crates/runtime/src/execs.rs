//! Execs: programs that run in a sandbox. They can be followed, fed and signalled.
//!
//! A program belongs to its sandbox, not to the client that started it: it keeps running when the client disconnects
//! or the server dies, and can be followed again from any position.

use saggar_domain::{Beginning, ExecId, ExecSpec, SandboxId, Signal, SignalScope, TerminalSize};
use saggar_supervisor::control::{Attach, ExecDescription, Op, Reply, StartExec};

use crate::fault::Fault;
use crate::following::{Followed, Following, first_place};
use crate::permit::{Action, Permit};
use crate::sandboxes::Sandboxes;
use crate::supervisor::{ControlError, started};

impl Sandboxes {
    /// Starts a program in the background.
    pub async fn start_exec(&self, permit: &Permit, spec: ExecSpec) -> Result<ExecDescription, Fault> {
        let id = self.may_exec(permit)?;
        let op = op(self.new_exec_id(), spec, false);
        let reply = self.question(permit.project(), id, op).await?;
        started(reply).map_err(|error| Fault::from_control(error, id))
    }

    /// Starts a program and follows it from its first byte. To send input, attach separately.
    pub async fn follow_exec(&self, permit: &Permit, spec: ExecSpec) -> Result<Followed, Fault> {
        self.follow_exec_as(permit, self.new_exec_id(), spec).await
    }

    /// The same under an id chosen by the caller. An id can be used once: a second start is refused.
    pub async fn follow_exec_as(&self, permit: &Permit, exec_id: ExecId, spec: ExecSpec) -> Result<Followed, Fault> {
        let id = self.may_exec(permit)?;
        self.followed(permit, id, op(exec_id, spec, true), Beginning::Start).await
    }

    /// Follows a program that was started before.
    pub async fn attach(
        &self,
        permit: &Permit,
        exec_id: &ExecId,
        from: Beginning,
        stdin: bool,
    ) -> Result<Followed, Fault> {
        let id = self.may_exec(permit)?;
        self.followed(permit, id, Op::Attach(Attach { exec_id: exec_id.clone(), from, stdin }), from).await
    }

    async fn followed(&self, permit: &Permit, id: &SandboxId, op: Op, from: Beginning) -> Result<Followed, Fault> {
        let (reply, connection) = self.conversation(permit.project(), id, op).await?;
        let exec = started(reply).map_err(|error| Fault::from_control(error, id))?;
        let (incoming, feeding) = connection.split();
        let following = Following::new(id.clone(), incoming, first_place(from, &exec));
        Ok(Followed { exec, following, feeding })
    }

    pub async fn signal(
        &self,
        permit: &Permit,
        exec_id: &ExecId,
        signal: Signal,
        scope: SignalScope,
    ) -> Result<(), Fault> {
        let id = self.may_exec(permit)?;
        self.done(permit, id, Op::Signal { exec_id: exec_id.clone(), signal, scope, wait: false }).await
    }

    /// Kills a program and everything it started, and waits until no process of it is left.
    pub async fn kill_exec(&self, permit: &Permit, exec_id: &ExecId) -> Result<(), Fault> {
        let id = self.may_exec(permit)?;
        let op = Op::Signal { exec_id: exec_id.clone(), signal: Signal::KILL, scope: SignalScope::Tree, wait: true };
        self.done(permit, id, op).await
    }

    pub async fn resize(&self, permit: &Permit, exec_id: &ExecId, size: TerminalSize) -> Result<(), Fault> {
        let id = self.may_exec(permit)?;
        self.done(permit, id, Op::Resize { exec_id: exec_id.clone(), size }).await
    }

    async fn done(&self, permit: &Permit, id: &SandboxId, op: Op) -> Result<(), Fault> {
        match self.question(permit.project(), id, op).await? {
            Reply::Done => Ok(()),
            _ => Err(Fault::from_control(ControlError::Protocol("another answer than `done`".to_owned()), id)),
        }
    }

    fn may_exec<'a>(&self, permit: &'a Permit) -> Result<&'a SandboxId, Fault> {
        permit.check(|action| matches!(action, Action::Exec(_)))?;
        permit.sandbox()
    }
}

fn op(exec_id: ExecId, spec: ExecSpec, follow: bool) -> Op {
    Op::Exec(Box::new(StartExec { exec_id, spec, follow, is_fed_apart: true }))
}
