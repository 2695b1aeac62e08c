//! Execs: programs run in a sandbox, followed, fed and signalled.
//!
//! A program belongs to its sandbox and not to whoever started it: a client that goes away, and a server that dies, leave it
//! running, and it can be followed again from where one stopped reading.

use std::collections::BTreeMap;

use saggar_domain::{ExecId, SandboxId, User};
use saggar_supervisor::control::{Attach, ExecState, From, Op, PerExec, Reply, Scope, StartExec, WindowSize};

use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::Sandboxes;
use crate::supervisor::{ControlError, Feeding, Following, Message, started};

const SIGKILL: u8 = 9;

/// A program to start.
#[derive(Clone, Debug, Default)]
pub struct NewExec {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Added to the sandbox's environment.
    pub env: BTreeMap<String, String>,
    /// Working directory; `None` for the sandbox's.
    pub cwd: Option<String>,
    /// As whom; `None` for the sandbox's user.
    pub user: Option<User>,
    /// Whether it gets a stdin.
    pub stdin: bool,
    /// A terminal of this size.
    pub tty: Option<WindowSize>,
    /// Milliseconds until its whole tree is ended.
    pub timeout_ms: Option<u64>,
    /// Limits of its own.
    pub limits: Option<PerExec>,
    /// How much of its output is kept.
    pub output_bytes: Option<u64>,
    /// What it is called, for whoever looks later.
    pub tag: Option<String>,
}

/// A program that runs, and a connection that follows it.
#[derive(Debug)]
pub struct Followed {
    /// The exec as it was when the connection was made.
    pub state: ExecState,
    /// What it writes.
    pub following: Following,
    /// What it reads.
    pub feeding: Feeding,
}

/// A finished exec with what was kept of its output.
#[derive(Clone, Debug)]
pub struct Finished {
    pub state: ExecState,
    /// What it wrote.
    pub stdout: Vec<u8>,
    /// What it wrote to the other.
    pub stderr: Vec<u8>,
}

impl Sandboxes {
    /// Starts a program and lets it run.
    pub async fn start_exec(&self, permit: &Permit, new: NewExec) -> Result<ExecState, Fault> {
        let id = self.may_exec(permit)?;
        let op = op(self.new_exec_id(), new, false);
        let reply = self.question(permit.project(), id, op).await?;
        started(reply).map_err(|error| Fault::from_control(error, id))
    }

    /// Starts a program and follows it from its first byte, without feeding it: whoever feeds it attaches for that.
    pub async fn follow_exec(&self, permit: &Permit, new: NewExec) -> Result<Followed, Fault> {
        self.follow_exec_as(permit, self.new_exec_id(), new).await
    }

    /// The same under an id that the caller has chosen. There is at most one exec of an id: a second is refused.
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

    /// Signals a program.
    pub async fn signal(&self, permit: &Permit, exec_id: &ExecId, signal: u8, scope: Scope) -> Result<(), Fault> {
        let id = self.may_exec(permit)?;
        self.done(permit, id, Op::Signal { exec_id: exec_id.clone(), signal, scope, wait: false }).await
    }

    /// Kills a program and everything it started, and waits until no process of it is left..
    pub async fn kill_exec(&self, permit: &Permit, exec_id: &ExecId) -> Result<(), Fault> {
        let id = self.may_exec(permit)?;
        let op = Op::Signal { exec_id: exec_id.clone(), signal: SIGKILL, scope: Scope::Tree, wait: true };
        self.done(permit, id, op).await
    }

    /// Gives a program's terminal a new size.
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
    /// Follows to the end and keeps what fits: at most `most` bytes of each stream, the last ones, what was passed over counted
    /// as dropped. The program goes on if this is dropped.
    pub async fn finish(mut self, id: &SandboxId, most: usize) -> Result<Finished, Fault> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        loop {
            let message = self.following.next().await.map_err(|error| Fault::from_control(error, id))?;
            match message {
                Some(Message::Output { stream, bytes, .. }) => {
                    let kept = if stream == 2 { &mut stderr } else { &mut stdout };
                    kept.extend_from_slice(&bytes);
                    // Cut seldom, so that a flood costs one copy a byte and not many.
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
                // What was passed over shows in the sums.
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
