//! Unreadable journals: their runs are blocked, and a human is told. No effect is executed for a run whose history is
//! unknown.

use std::collections::BTreeMap;
use std::future::Future;

use saggar_domain::{RunId, RunState};
use saggar_engine::{AgentSpec, Body, Budget, Entry, EntryError, ModelRef, RetryPolicy};
use saggar_store::Error;

use super::drive::{Drive, STORE_RETRY, Stopped};
use super::effects::{About, Effects, Over};
use super::journal::Journal;
use crate::fault::Fault;

/// Why this program can't execute a run.
#[derive(Debug)]
pub(super) enum Unread {
    /// The stored data has changed since it was written.
    Damaged(String),
    /// A newer version wrote it.
    Newer,
}

/// The fault for an entry that can't be decoded.
pub(super) fn unreadable(run: &RunId, seq: u64, error: EntryError) -> Fault {
    match error {
        EntryError::Unreadable(_) => Fault::RunDamaged { run: run.clone(), what: format!("entry {seq} can't be read") },
        error @ EntryError::TooNew(_) => Fault::internal("reading a journal", error),
    }
}

/// Checks that an entry could be decoded and has the number of its position.
pub(super) fn decoded(seq: u64, read: Result<Entry, EntryError>) -> Result<Entry, Unread> {
    match read {
        // A fork's history has its parent's numbers, which it shares.
        Ok(entry) if entry.seq == seq => Ok(entry),
        Ok(entry) => Err(Unread::Damaged(format!("entry {seq} has the number {}", entry.seq))),
        Err(EntryError::TooNew(version)) => {
            tracing::error!(seq, version, "journal entry was written by a newer version");
            Err(Unread::Newer)
        }
        Err(EntryError::Unreadable(_)) => Err(Unread::Damaged(format!("entry {seq} can't be read"))),
    }
}

impl<J: Journal, E: Effects> Drive<J, E> {
    /// Retries until the store returns it or reports damage, which is permanent.
    pub(super) async fn until_readable<T, F, Fut>(&self, work: F) -> Result<T, Unread>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, Error>>,
    {
        let mut failures = 0;
        loop {
            match work().await {
                Ok(done) => return Ok(done),
                Err(Error::Corrupt { what }) => return Err(Unread::Damaged(what)),
                Err(error) => {
                    tracing::warn!(run_id = %self.claimed.run.id, error = %error, "the store failed");
                    failures += 1;
                    self.wait_by(&STORE_RETRY, failures).await;
                }
            }
        }
    }

    /// What happens to a run that can't be read.
    pub(super) async fn unread(&self, unread: Unread) -> Result<Stopped, Stopped> {
        let (run, epoch) = (&self.claimed.run, self.claimed.epoch);
        match unread {
            Unread::Newer => Err(Stopped::Broken),
            // A human has ended it. Its resources can be released without knowing its history.
            Unread::Damaged(_) if run.state == RunState::Finished => {
                let (id, project, sandbox) = (run.id.clone(), run.project.clone(), run.sandbox.clone());
                // Those that it never had have no sandbox either.
                let earlier_generations = (0..run.generation).collect();
                let (generation, agent) = (run.generation, nobody());
                let about =
                    About { run: id, generation, earlier_generations, earlier_sandbox: None, project, agent, sandbox };
                Ok(self.let_go(&self.effects.session(about), Over::Otherwise).await)
            }
            Unread::Damaged(reason) => {
                tracing::error!(run_id = %run.id, reason, "blocked run: its journal is damaged and a human must end it");
                self.until_done(|| self.journal.block(run.id.clone(), epoch, reason.clone())).await;
                Err(Stopped::Broken)
            }
        }
    }
}

/// Stands in for an agent that can't be read, where nothing is asked of it.
fn nobody() -> AgentSpec {
    let model = ModelRef {
        provider: String::new(),
        model: String::new(),
        sampling: Default::default(),
        reply_tokens_max: 0,
        reply_micros_max: None,
        retry: RetryPolicy::default(),
    };
    AgentSpec {
        name: String::new(),
        identity: None,
        directory: None,
        system: None,
        task: Body::text(""),
        model,
        tools: BTreeMap::new(),
        sandbox: Default::default(),
        budget: Budget::default(),
        repeats_max: 1,
        corrections_max: saggar_engine::CORRECTIONS_DEFAULT,
        output: None,
        context: None,
        open_max: 1,
        on: Default::default(),
        snapshots: Default::default(),
        agents: BTreeMap::new(),
    }
}
