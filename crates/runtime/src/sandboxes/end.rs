//! Ends a sandbox, and records how one ended.
//!
//! A sandbox can end on request, at its deadline, or by a crash; several tasks may notice at once. The store keeps
//! the first recorded end, so their order doesn't matter. A supervisor's last words are removed only after they are
//! stored.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use saggar_domain::{EndReason, ProjectId, SandboxId, Timestamp};
use saggar_store::{
    Changed, Ending, ExecEnd, ExecOutput, ExecRecord, JsonText, LastWords, Life, Sandbox, StartedExec, StoredDecision,
    StoredEvent, Tail,
};
use saggar_supervisor::control::{Event, EventBody, ExecDescription, Final, FinishedExec, Op, Reply};

use super::live::Live;
use super::{Sandboxes, now};
use crate::fail_point::pass;
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::supervisor::{Connection, ControlError};

impl Sandboxes {
    /// Ends a sandbox: when this returns nothing of it is left. An ended one keeps its recorded end.
    pub async fn kill(&self, permit: &Permit) -> Result<Sandbox, Fault> {
        permit.check(|action| matches!(action, Action::KillSandbox(_)))?;
        let (project, id) = (permit.project(), permit.sandbox()?);
        match self.live(project, id).await {
            Ok(live) => {
                // Continues if the client disconnects: a kill that has started is completed.
                let (this, ending) = (self.clone(), live);
                let work = tokio::spawn(async move { this.end_live(&ending).await });
                work.await.map_err(|error| Fault::internal("ending a sandbox", error))??;
            }
            Err(Fault::Ended { .. }) => {}
            Err(other) => return Err(other),
        }
        self.row_of(project, id).await
    }

    pub(super) async fn end_live(&self, live: &Live) -> Result<(), Fault> {
        pass("kill/begun");
        // From now on nobody takes its end for the end of its supervisor alone.
        live.set_ending();
        if live.is_alone() {
            // One that is being resumed is ended when it runs.
            let _paused = live.accounted.lock().await;
            let _alone = self.lock_change(live).await?;
            if live.is_alone() {
                // First, because others may notice that it has no supervisor. What is kept of an ended one is swept.
                self.write_end(&live.id, EndReason::Killed, None).await;
                return self.forget_rest(live).await;
            }
        }
        self.forget_rest(live).await?;
        let mut answer = Connection::question(&live.socket, Op::Kill).await;
        if matches!(&answer, Err(error) if error.is_gone()) {
            // A supervisor that is ending drops existing connections before it has left its last words, but still
            // answers new ones.
            answer = Connection::question(&live.socket, Op::Kill).await;
        }
        match answer {
            Ok(Reply::Killed(last)) => {
                pass("kill/dead");
                self.write_final(&last).await
            }
            Ok(_) => {
                Err(Fault::from_control(ControlError::Protocol("another answer than `killed`".to_owned()), &live.id))
            }
            // Another task was faster, or it was already dead.
            Err(error) if error.is_gone() => self.find_end(&live.id, EndReason::SupervisorLost).await,
            Err(error) => Err(Fault::from_control(error, &live.id)),
        }
    }

    /// Ends a sandbox that was created but will not be acknowledged.
    pub(super) async fn abandon(&self, live: &Live) {
        if let Err(fault) = self.end_live(live).await {
            tracing::error!(sandbox = %live.id, error = %fault, "ending an unacknowledged sandbox failed");
        }
    }

    /// The supervisor is gone: records its last words, or without them the given reason.
    pub(super) async fn find_end(&self, id: &SandboxId, otherwise: EndReason) -> Result<(), Fault> {
        if self.rests(id).await {
            return Ok(());
        }
        match self.last_words(id) {
            Some(last) => self.write_final(&last).await,
            None => self.lose(id, otherwise).await,
        }
    }

    /// The same for a live sandbox. If it is no longer registered, another task has recorded its end and removed its
    /// last words. Then there is nothing to look for, and scanning everything at each end would make its cost grow
    /// with the number of sandboxes.
    pub(super) async fn find_end_of_live(&self, id: &SandboxId) -> Result<(), Fault> {
        if self.rests(id).await {
            return Ok(());
        }
        match self.last_words(id) {
            Some(last) => self.write_final(&last).await,
            None if self.inner.register.get(id).is_none() => Ok(()),
            None => self.lose(id, EndReason::SupervisorLost).await,
        }
    }

    fn last_words(&self, id: &SandboxId) -> Option<Final> {
        self.inner.places.read_final(id).unwrap_or_else(|error| {
            tracing::warn!(sandbox = %id, error = %error, "reading a sandbox's last words failed");
            None
        })
    }

    /// Records the end of a sandbox without last words. Its leftovers are removed now, because a killed supervisor
    /// cleans up nothing.
    pub(super) async fn lose(&self, id: &SandboxId, reason: EndReason) -> Result<(), Fault> {
        self.write_end(id, reason, None).await;
        self.inner.places.remove_socket(id);
        self.reap().await;
        Ok(())
    }

    /// Stores a supervisor's last words, then removes their file.
    pub(super) async fn write_final(&self, last: &Final) -> Result<(), Fault> {
        let id = &last.sandbox_id;
        let has_row = self.inner.register.get(id).is_some() || self.store().sandbox_of_any(id.clone()).await?.is_some();
        if last.is_claimed && has_row {
            let detail = serde_json::json!({ "usage": last.usage, "error": last.error });
            let at = Timestamp::from_millis(last.ended_ms);
            let ending = Ending { at, reason: last.reason, detail: JsonText::of(&detail) };
            let execs = last.execs.iter().map(|finished| exec_record(id, finished)).collect();
            let (events, decisions) = stored(&last.events);
            self.store().write_last_words(id.clone(), LastWords { events, decisions, execs, ending }).await?;
            pass("end/row");
        }
        self.forget(id, last.reason);
        self.inner.places.remove_final(id);
        pass("end/forgotten");
        Ok(())
    }

    /// Records an end without last words.
    pub(super) async fn write_end(&self, id: &SandboxId, reason: EndReason, fault: Option<&Fault>) {
        let detail =
            fault.and_then(|fault| JsonText::of(&serde_json::json!({ "error": { "message": fault.to_string() } })));
        let ending = Ending { at: now(), reason, detail };
        match self.store().end_sandbox(id.clone(), ending).await {
            Ok(Changed::Done | Changed::Otherwise(_) | Changed::Absent) => {}
            // The next start finds a live row without a supervisor, and records the end then.
            Err(error) => tracing::error!(sandbox = %id, error = %error, "recording the end of a sandbox failed"),
        }
        self.forget(id, reason);
    }

    /// Removes it from the live ones; its slot is free.
    fn forget(&self, id: &SandboxId, reason: EndReason) {
        if let Some(live) = self.inner.register.remove(id) {
            live.free_slot();
            live.ended.send_replace(Some(reason));
        }
    }

    /// Records that an exec ended, and that it started unless that is recorded.
    pub(super) async fn write_exec_ended(
        &self,
        id: &SandboxId,
        state: &ExecDescription,
        end: ExecEnd,
        output: ExecOutput,
    ) -> Result<(), Fault> {
        let ended = async {
            self.store().record_exec_ended(id.clone(), state.exec_id.clone(), end, output).await?;
            Ok(())
        };
        // The store processes them in order, and requested together they share a commit.
        tokio::try_join!(self.write_exec_started(id, state), ended)?;
        Ok(())
    }

    /// Records that an exec started, unless that is recorded.
    pub(super) async fn write_exec_started(&self, id: &SandboxId, state: &ExecDescription) -> Result<(), Fault> {
        let exec = new_exec(id, state);
        match self.store().record_exec_started(exec).await {
            Ok(()) | Err(saggar_store::Error::Taken { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn write_events(&self, id: &SandboxId, events: &[Event]) -> Result<(), Fault> {
        let (events, decisions) = stored(events);
        Ok(self.store().append_heard(id.clone(), events, decisions).await?)
    }

    /// Why a sandbox can't be reached: it has ended, is being created, or isn't this project's.
    pub(super) async fn why_not_live(&self, project: &ProjectId, id: &SandboxId) -> Fault {
        match self.store().sandbox(project.clone(), id.clone()).await {
            Ok(None) => Fault::no_sandbox(id),
            Ok(Some(sandbox)) => match sandbox.life {
                Life::Ended { ending, .. } => Fault::Ended { id: id.clone(), reason: Some(ending.reason) },
                Life::Creating => Fault::InProgress,
                // The row lags behind its supervisor for a moment.
                Life::Running { .. } | Life::Paused { .. } => Fault::Ended { id: id.clone(), reason: None },
            },
            Err(error) => error.into(),
        }
    }

    /// The supervisor says that it is over; the reason is in the row as soon as it is recorded.
    pub(super) async fn ended_fault(&self, project: &ProjectId, id: &SandboxId) -> Fault {
        if let Err(fault) = self.find_end_if_gone(id).await {
            return fault;
        }
        self.why_not_live(project, id).await
    }

    /// Checks whether a sandbox that doesn't respond is really gone.
    async fn find_end_if_gone(&self, id: &SandboxId) -> Result<(), Fault> {
        let Some(live) = self.inner.register.get(id) else { return Ok(()) };
        match Connection::question(&live.socket, Op::Describe).await {
            Err(error) if error.is_gone() => self.find_end_of_live(id).await,
            // Still ending: the task that ends it records that.
            Ok(_) | Err(_) => Ok(()),
        }
    }
}

/// Events as they are stored: decisions apart from the others.
fn stored(events: &[Event]) -> (Vec<StoredEvent>, Vec<StoredDecision>) {
    let (mut plain, mut decisions) = (Vec::new(), Vec::new());
    for event in events {
        let Some(body) = JsonText::of(&event.body) else { continue };
        let (seq, at) = (event.seq, Timestamp::from_millis(event.at_ms));
        match &event.body {
            EventBody::Decision { decision, .. } => {
                decisions.push(StoredDecision { seq, at, body, decision: (**decision).clone() });
            }
            _ => plain.push(StoredEvent { seq, at, body }),
        }
    }
    (plain, decisions)
}

fn new_exec(id: &SandboxId, state: &ExecDescription) -> StartedExec {
    StartedExec {
        id: state.exec_id.clone(),
        sandbox: id.clone(),
        argv: state.argv.clone(),
        cwd: None,
        user: saggar_domain::User::User,
        started_at: Timestamp::from_millis(state.started_ms),
    }
}

fn exec_record(id: &SandboxId, finished: &FinishedExec) -> ExecRecord {
    let state = &finished.state;
    let decode = |text: &str| STANDARD.decode(text).unwrap_or_default();
    let output = ExecOutput {
        stdout: Tail::new(decode(&finished.stdout), state.stdout_dropped),
        stderr: Tail::new(decode(&finished.stderr), state.stderr_dropped),
    };
    ExecRecord { exec: new_exec(id, state), end: end_of(state).map(|end| (end, output)) }
}

pub(super) fn end_of(state: &ExecDescription) -> Option<ExecEnd> {
    Some(ExecEnd {
        at: Timestamp::from_millis(state.ended_ms?),
        status: state.status?,
        exit_code: state.exit_code,
        signal: state.signal,
    })
}
