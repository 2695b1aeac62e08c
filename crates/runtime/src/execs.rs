//! Execs: programs that run in a sandbox. They can be followed, fed and signalled.
//!
//! A program belongs to its sandbox, not to the client that started it: it keeps running when the client disconnects
//! or the server dies, and can be followed again from any position.

use std::collections::BTreeMap;

use saggar_domain::{ExecId, SandboxId, User};
use saggar_supervisor::control::{Attach, ExecState, From, Op, PerExec, Reply, Scope, StartExec, WindowSize};

use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::Sandboxes;
use crate::supervisor::{ControlError, Feeding, Following, Message, started};

const SIGKILL: u8 = 9;

#[derive(Clone, Debug, Default)]
pub struct NewExec {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// In addition to the sandbox's environment; takes precedence.
    pub env: BTreeMap<String, String>,
    /// `None` means the sandbox's default.
    pub cwd: Option<String>,
    /// `None` means the sandbox's user.
    pub user: Option<User>,
    /// Whether it gets a stdin.
    pub stdin: bool,
    /// The size of its own terminal, if it gets one.
    pub tty: Option<WindowSize>,
    /// Milliseconds until its whole tree is killed.
    pub timeout_ms: Option<u64>,
    /// Its own limits, if any.
    pub limits: Option<PerExec>,
    /// How much of its output is kept.
    pub output_bytes: Option<u64>,
    /// A name for finding it later.
    pub tag: Option<String>,
}

/// A running program, and a connection that follows it.
#[derive(Debug)]
pub struct Followed {
    /// The exec's state when the connection was made.
    pub state: ExecState,
    /// Its output.
    pub following: Following,
    /// Its input.
    pub feeding: Feeding,
}

/// A finished exec with its kept output.
#[derive(Clone, Debug)]
pub struct Finished {
    pub state: ExecState,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Sandboxes {
    /// Starts a program in the background.
    pub async fn start_exec(&self, permit: &Permit, new: NewExec) -> Result<ExecState, Fault> {
        let id = self.may_exec(permit)?;
        let op = op(self.new_exec_id(), new, false);
        let reply = self.question(permit.project(), id, op).await?;
        started(reply).map_err(|error| Fault::from_control(error, id))
    }

    /// Starts a program and follows it from its first byte. To send input, attach separately.
    pub async fn follow_exec(&self, permit: &Permit, new: NewExec) -> Result<Followed, Fault> {
        self.follow_exec_as(permit, self.new_exec_id(), new).await
    }

    /// The same under an id chosen by the caller. An id can be used once: a second start is refused.
    pub async fn follow_exec_as(&self, permit: &Permit, exec_id: ExecId, new: NewExec) -> Result<Followed, Fault> {
        let id = self.may_exec(permit)?;
        let op = op(exec_id, new, true);
        let (reply, connection) = self.conversation(permit.project(), id, op).await?;
        let state = started(reply).map_err(|error| Fault::from_control(error, id))?;
        let (following, feeding) = connection.follow();
        Ok(Followed { state, following, feeding })
    }

    /// Follows a program that was started before.
    pub async fn attach(&self, permit: &Permit, exec_id: &ExecId, from: From, stdin: bool) -> Result<Followed, Fault> {
        let id = self.may_exec(permit)?;
        let op = Op::Attach(Attach { exec_id: exec_id.clone(), from, stdin });
        let (reply, connection) = self.conversation(permit.project(), id, op).await?;
        let state = started(reply).map_err(|error| Fault::from_control(error, id))?;
        let (following, feeding) = connection.follow();
        Ok(Followed { state, following, feeding })
    }

    pub async fn signal(&self, permit: &Permit, exec_id: &ExecId, signal: u8, scope: Scope) -> Result<(), Fault> {
        let id = self.may_exec(permit)?;
        self.done(permit, id, Op::Signal { exec_id: exec_id.clone(), signal, scope, wait: false }).await
    }

    /// Kills a program and its descendants, and waits until none is left.
    pub async fn kill_exec(&self, permit: &Permit, exec_id: &ExecId) -> Result<(), Fault> {
        let id = self.may_exec(permit)?;
        let op = Op::Signal { exec_id: exec_id.clone(), signal: SIGKILL, scope: Scope::Tree, wait: true };
        self.done(permit, id, op).await
    }

    pub async fn resize(&self, permit: &Permit, exec_id: &ExecId, size: WindowSize) -> Result<(), Fault> {
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

impl Followed {
    /// Follows to the end and keeps at most the last `most` bytes of each stream; the rest is counted as dropped. The
    /// program keeps running if this is cancelled.
    pub async fn finish(mut self, id: &SandboxId, most: usize) -> Result<Finished, Fault> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            let message = self.following.next().await.map_err(|error| Fault::from_control(error, id))?;
            match message {
                Some(Message::Output { stream, bytes, .. }) => {
                    let kept = if stream == 2 { &mut stderr } else { &mut stdout };
                    kept.extend_from_slice(&bytes);
                    // Trimmed only occasionally, so that a flood is copied once and not many times.
                    if kept.len() > 2 * most {
                        kept.drain(..kept.len() - most);
                    }
                }
                Some(Message::Reply(Reply::Exited(state))) => {
                    for kept in [&mut stdout, &mut stderr] {
                        kept.drain(..kept.len().saturating_sub(most));
                    }
                    let mut state = *state;
                    state.stdout_dropped = state.stdout_bytes.saturating_sub(stdout.len() as u64);
                    state.stderr_dropped = state.stderr_bytes.saturating_sub(stderr.len() as u64);
                    return Ok(Finished { state, stdout, stderr });
                }
                Some(Message::Reply(Reply::Error(problem))) => {
                    return Err(Fault::from_control(ControlError::Refused(problem), id));
                }
                // Skipped output shows in the totals.
                Some(Message::Reply(_)) => {}
                None => return Err(Fault::Ended { id: id.clone(), reason: None }),
            }
        }
    }
}

fn op(exec_id: ExecId, new: NewExec, follow: bool) -> Op {
    let NewExec { argv, env, cwd, user, stdin, tty, timeout_ms, limits, output_bytes, tag } = new;
    let start = StartExec {
        exec_id,
        argv,
        env,
        cwd,
        user,
        stdin,
        tty,
        timeout_ms,
        limits,
        output_bytes,
        tag,
        follow,
        is_fed_apart: true,
    };
    Op::Exec(Box::new(start))
}
