//! Executes one run while a worker holds it and there is something to do.
//!
//! ```text
//!   load, fold ─▶ Claim ─▶ ┌ append what was decided ─▶ start what is pending ─▶ wait: a report, a letter, a time, the lease ┐
//!                          └──────────────────────────────────── decide ◀─────────────────────────────────────────────────────┘
//! ```
//! The state in memory is ahead of the journal only within [`Drive::commit`]. If that fails, everything here is
//! dropped, including the effects in progress, and the next holder starts from the journal. Cancelling it at any await
//! loses nothing but time.

mod begin;
mod commit;

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::RunState;
use saggar_engine as engine;
use saggar_engine::{Input, Rejected, RetryPolicy, Run, RunFiles, RunStatus};
use saggar_store::{BlobHash, Claimed};
use tokio::time::sleep;

use super::damage::{Unread, decoded};
use super::effects::{About, Effects, Over, Session};
use super::family::Batch;
use super::hub::{Hub, Topic};
use super::instruction::Instruction;
use super::journal::Journal;
use super::lease::Belief;
use super::stored_agent::read_entry;
use super::under_way::UnderWay;
use crate::fail_point::pass;
use commit::Committed;

/// A shorter wait is spent here: releasing a run and claiming it again costs more.
const SAT_OUT: Duration = Duration::from_secs(2);
/// During a longer wait the run's sandbox is paused.
const SLEPT_OVER: Duration = Duration::from_secs(30);
/// Maximum sleep by the wall clock, which may be set.
const CLOCK_CHECK: Duration = Duration::from_secs(1);
/// How often a run that waits for calls of models in its sandboxes looks whether they have ended.
const SANDBOX_CALLS_CHECK: Duration = Duration::from_millis(50);
/// Retries of a failing store. The end of the lease ends them.
pub(super) const STORE_RETRY: RetryPolicy = RetryPolicy { attempts_max: u32::MAX, first_ms: 20, most_ms: 500 };
/// Retries of releasing a run's resources. After that, their own deadline ends them.
const END_RETRY: RetryPolicy = RetryPolicy { attempts_max: 6, first_ms: 200, most_ms: 5000 };
/// Time limit of one such attempt.
const END_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Drive<J, E> {
    pub(super) journal: J,
    pub(super) effects: E,
    pub(super) hub: Hub,
    pub(super) belief: Belief,
    pub(super) claimed: Claimed,
}

/// Why a run is no longer executed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    Finished,
    /// There is nothing to do for now: it was released.
    Resting,
    /// Another worker holds it, or may hold it.
    Lost,
    /// Its journal can't be read.
    Broken,
}

/// The state of a run in memory.
struct Driven<S> {
    run: Run,
    head: u64,
    session: Arc<S>,
    /// The sandbox that the row names.
    recorded: Option<saggar_domain::SandboxId>,
    /// What the row has about its snapshots.
    files: RunFiles,
    /// The newest letter that was seen. Letters left unread don't keep the run awake.
    seen: i64,
    /// Agents of its children that are known to be stored.
    agents: BTreeSet<BlobHash>,
}

impl<J: Journal, E: Effects> Drive<J, E> {
    /// Executes the run until there is nothing to do, or another worker holds it.
    pub(super) async fn run(self) -> Stopped {
        let run = self.claimed.run.id.clone();
        let topic = self.hub.topic(&run);
        let belief = self.belief.clone();
        let stopped = tokio::select! {
            biased;
            // The effects in progress are dropped: the run may belong to another worker by now.
            () = belief.lost() => Stopped::Lost,
            outcome = self.go(&topic) => match outcome {
                Ok(stopped) => stopped,
                Err(stopped @ Stopped::Lost) => {
                    // If we still hold it, another worker can claim it at once; if not, this changes nothing.
                    let _ = self.journal.release(run.clone(), self.claimed.epoch).await;
                    stopped
                }
                Err(stopped) => stopped,
            },
        };
        self.hub.forget(&run, topic);
        stopped
    }

    async fn go(&self, topic: &Topic) -> Result<Stopped, Stopped> {
        let mut driven = match self.load().await {
            Ok(driven) => driven,
            Err(unread) => return self.unread(unread).await,
        };
        if driven.run.outcome().is_some() || self.claimed.run.state == RunState::Finished {
            // Its worker died after its end and before releasing its resources, or a human ended it as damaged: then
            // its journal has no end, and must not continue.
            return Ok(self.finish(&driven).await);
        }
        self.record(&mut driven, Happened::Claimed).await?;
        let mut under_way = UnderWay::default();
        loop {
            if driven.run.outcome().is_some() {
                drop(under_way);
                return Ok(self.finish(&driven).await);
            }
            self.begin(&driven, &mut under_way).await?;
            if under_way.is_empty() && !self.sits_out(&driven.run) {
                return self.rest(&driven).await;
            }
            let happened = tokio::select! {
                biased;
                reports = under_way.reports() => self.reported(&driven.run, reports).await,
                () = topic.letters.notified() => Happened::Letters,
                () = self.deadline(&driven.run) => Happened::Time,
                () = sleep(SANDBOX_CALLS_CHECK), if driven.run.waits_for_sandboxes() => Happened::Time,
            };
            self.record(&mut driven, happened).await?;
        }
    }

    /// Decides what follows from what has happened, and makes it durable. Decides again if programs in the run's sandboxes
    /// have called models meanwhile, and what was decided doesn't fit beside that.
    async fn record(&self, driven: &mut Driven<E::Session>, happened: Happened) -> Result<(), Stopped> {
        let mut tries = 0;
        loop {
            let mut batch = Batch::default();
            let consumed = self.decide(driven, &happened, &mut batch).await?;
            if batch.events.is_empty() && consumed.is_empty() {
                return Ok(());
            }
            match self.commit(driven, batch, consumed, tries).await? {
                Committed::Done => return Ok(()),
                Committed::Overtaken => tries += 1,
            }
            match self.fold().await {
                Ok((run, head)) => (driven.run, driven.head) = (run, head),
                Err(unread) => return Err(self.unread(unread).await.unwrap_or_else(|stopped| stopped)),
            }
        }
    }

    /// The events, and the letters that they consume.
    async fn decide(
        &self,
        driven: &mut Driven<E::Session>,
        happened: &Happened,
        batch: &mut Batch,
    ) -> Result<Vec<i64>, Stopped> {
        self.price(driven, batch);
        if let Some(calls) = self.sandbox_calls(&driven.run).await
            && let Err(rejected) = self.input(driven, self.effects.now(), &calls, batch)
        {
            tracing::debug!(run_id = %self.claimed.run.id, error = %rejected, "ignored calls of models in its sandboxes");
        }
        let now = self.effects.now();
        match happened {
            Happened::Claimed => {
                self.input(driven, now, &Input::claim(self.claimed.epoch), batch).map_err(|rejected| {
                    tracing::error!(run_id = %self.claimed.run.id, error = %rejected, "claiming a run failed");
                    Stopped::Broken
                })?;
                self.read_letters(driven, batch).await
            }
            // What ended together is recorded in one commit.
            Happened::Reported(reports) => {
                for report in reports {
                    if let Err(rejected) = self.input(driven, now, report, batch) {
                        tracing::debug!(run_id = %self.claimed.run.id, error = %rejected, "ignored a late report");
                    }
                }
                Ok(Vec::new())
            }
            Happened::Letters => self.read_letters(driven, batch).await,
            Happened::Time => {
                // A finished run has no deadline, so nothing is rejected.
                self.input(driven, now, &Input::Tick, batch).map_err(|_| Stopped::Broken)?;
                Ok(Vec::new())
            }
        }
    }

    /// Loads the run from its journal.
    async fn load(&self) -> Result<Driven<E::Session>, Unread> {
        let row = &self.claimed.run;
        let (run, head) = self.fold().await?;
        let session = self.session(&run, row.sandbox.clone(), None);
        let files = row.files.as_ref().and_then(|files| files.to_value().ok()).unwrap_or_default();
        Ok(Driven { run, head, session, recorded: row.sandbox.clone(), files, seen: 0, agents: BTreeSet::new() })
    }

    /// The run as its journal has it, and the number of the last entry.
    async fn fold(&self) -> Result<(Run, u64), Unread> {
        let row = &self.claimed.run;
        let mut run = Run::new();
        let mut head = 0;
        loop {
            let page = self.until_readable(|| self.journal.page(row.id.clone(), head)).await?;
            let Some(last) = page.last() else { break };
            head = last.seq;
            for entry in &page {
                let read = self.until_readable(|| read_entry(&self.journal, entry.seq, &entry.entry)).await?;
                run.apply(&decoded(entry.seq, read)?.event);
            }
        }
        match run.agent() {
            None => Err(Unread::Damaged("its journal has no first entry".to_owned())),
            Some(_) => Ok((run, head)),
        }
    }

    /// Starts to work for a run with a beginning.
    fn session(
        &self,
        run: &Run,
        sandbox: Option<saggar_domain::SandboxId>,
        earlier_sandbox: Option<saggar_domain::SandboxId>,
    ) -> Arc<E::Session> {
        let row = &self.claimed.run;
        Arc::new(self.effects.session(About {
            run: row.id.clone(),
            generation: run.generation(),
            earlier_generations: run.earlier_generations().to_vec(),
            earlier_sandbox,
            project: row.project.clone(),
            agent: run.agent().cloned().expect("the caller has looked"),
            sandbox,
        }))
    }

    /// Decides and applies the events: from here to the commit, memory is ahead of the journal.
    fn input(
        &self,
        driven: &mut Driven<E::Session>,
        now: saggar_domain::Timestamp,
        input: &Input,
        batch: &mut Batch,
    ) -> Result<(), Rejected> {
        for event in driven.run.decide(now, input)? {
            batch.take(&self.claimed.run.project, &mut driven.run, event);
        }
        Ok(())
    }

    /// Records what calls of its model may come to, if that has changed. What is decided next goes by it.
    fn price(&self, driven: &mut Driven<E::Session>, batch: &mut Batch) {
        let Some(tariff) = driven.session.tariff().filter(|tariff| driven.run.tariff() != Some(tariff)) else { return };
        let (now, priced) = (self.effects.now(), Input::Priced(Box::new(tariff)));
        if let Err(rejected) = self.input(driven, now, &priced, batch) {
            tracing::debug!(run_id = %self.claimed.run.id, error = %rejected, "ignored a tariff");
        }
    }

    /// Processes the inbox: control letters first, then messages, each in order. All of it is read, so that no letter
    /// waits behind another. Only a letter of a newer version stays, for a newer program.
    async fn read_letters(&self, driven: &mut Driven<E::Session>, batch: &mut Batch) -> Result<Vec<i64>, Stopped> {
        let letters = self.until_done(|| self.journal.letters(self.claimed.run.id.clone())).await;
        driven.seen = letters.last().map_or(driven.seen, |letter| letter.n.max(driven.seen));
        let mut read = Vec::with_capacity(letters.len());
        for letter in &letters {
            match Instruction::decode(letter) {
                Some(instruction) => read.push((instruction, letter)),
                None => {
                    tracing::error!(run_id = %self.claimed.run.id, "left a letter of a newer version unread");
                }
            }
        }
        if !read.is_empty() {
            pass("letter/read");
        }
        read.sort_by_key(|(instruction, _)| instruction.is_data());
        let mut consumed = Vec::with_capacity(read.len());
        for (instruction, letter) in read {
            if instruction.is_outdated(&driven.run) {
                tracing::info!(run_id = %self.claimed.run.id, "a letter for an earlier generation had no effect");
                consumed.push(letter.n);
                continue;
            }
            let input = instruction.into_input(letter, &driven.run);
            if let Err(rejected) = self.input(driven, self.effects.now(), &input, batch) {
                tracing::info!(run_id = %self.claimed.run.id, error = %rejected, "a letter had no effect");
            }
            consumed.push(letter.n);
        }
        Ok(consumed)
    }

    /// The run is over: releases its resources, after which no worker looks at it again.
    async fn finish(&self, driven: &Driven<E::Session>) -> Stopped {
        pass("run/finished");
        if !driven.session.may_hold() && self.claimed.run.state != RunState::Finished {
            return Stopped::Finished;
        }
        let over = match driven.run.outcome() {
            Some(engine::RunOutcome::Completed { .. }) => Over::Completed { last_step: driven.run.last_step() },
            _ => Over::Otherwise,
        };
        self.let_go(&driven.session, over).await
    }

    pub(super) async fn let_go(&self, session: &E::Session, over: Over) -> Stopped {
        let (run, epoch) = (&self.claimed.run, self.claimed.epoch);
        let mut attempt = 1;
        // Repeated if there is no response.
        while !tokio::time::timeout(END_TIMEOUT, session.end(over)).await.unwrap_or(false) {
            if END_RETRY.wait_ms(attempt, 0).is_none() {
                tracing::error!(run_id = %run.id, attempt, "releasing a run's sandbox failed; its deadline will end it");
                break;
            }
            tracing::warn!(run_id = %run.id, attempt, "releasing a run's sandbox failed; retrying");
            self.wait_by(&END_RETRY, attempt).await;
            attempt += 1;
        }
        self.until_done(|| self.journal.let_go(run.id.clone(), epoch)).await;
        Stopped::Finished
    }

    /// Whether a run without an effect in progress is kept, because it continues in a moment.
    fn sits_out(&self, run: &Run) -> bool {
        run.waits_for_sandboxes() || run.wakes_at().is_some_and(|until| until < self.effects.now().after(SAT_OUT))
    }

    /// Releases the run. A letter that arrives meanwhile makes it due.
    async fn rest(&self, driven: &Driven<E::Session>) -> Result<Stopped, Stopped> {
        let far = self.effects.now().after(SLEPT_OVER);
        let is_long = match driven.run.status() {
            RunStatus::Waiting { .. }
            | RunStatus::Delegating { .. }
            | RunStatus::Asking
            | RunStatus::Parked { .. }
            | RunStatus::OutOfBudget { .. }
            | RunStatus::Paused => driven.run.wakes_at().is_none_or(|until| until > far),
            RunStatus::Unborn | RunStatus::Queued | RunStatus::Running | RunStatus::Finished => false,
        };
        if is_long {
            driven.session.rest().await;
        }
        let (run, epoch) = (self.claimed.run.id.clone(), self.claimed.epoch);
        self.until_done(|| self.journal.release(run.clone(), epoch)).await;
        self.hub.wake();
        Ok(Stopped::Resting)
    }

    /// Waits for the run's next deadline; forever if it has none.
    async fn deadline(&self, run: &Run) {
        let Some(deadline) = run.next_deadline() else { return std::future::pending().await };
        loop {
            let left = deadline.as_millis().saturating_sub(self.effects.now().as_millis());
            if left == 0 {
                return;
            }
            sleep(Duration::from_millis(left).min(CLOCK_CHECK)).await;
        }
    }

    /// Retries until the store has done it. The end of the lease ends this too: [`Drive::run`] drops it.
    pub(super) async fn until_done<T, F, Fut>(&self, work: F) -> T
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, saggar_store::Error>>,
    {
        let mut failures = 0;
        loop {
            match work().await {
                Ok(done) => return done,
                Err(error) => {
                    tracing::warn!(run_id = %self.claimed.run.id, error = %error, "the store failed");
                    failures += 1;
                    self.wait_by(&STORE_RETRY, failures).await;
                }
            }
        }
    }

    /// Waits before the next attempt.
    pub(super) async fn wait_by(&self, policy: &RetryPolicy, failures: u32) {
        let wait = policy.wait_ms(failures, self.effects.chance()).unwrap_or(policy.most_ms);
        sleep(Duration::from_millis(wait)).await;
    }
}

enum Happened {
    Claimed,
    Reported(Vec<Input>),
    Letters,
    Time,
}
