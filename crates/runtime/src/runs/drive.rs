//! Executes one run while a worker holds it and there is something to do.
//!
//! ```text
//!   load, fold ─▶ Claim ─▶ ┌ append what was decided ─▶ start what is pending ─▶ wait: a report, a letter, a time, the lease ┐
//!                          └──────────────────────────────────── decide ◀─────────────────────────────────────────────────────┘
//! ```
//! The state in memory is ahead of the journal only within [`Drive::commit`]. If that fails, everything here is
//! dropped, including the effects in progress, and the next holder starts from the journal. Cancelling it at any await
//! loses nothing but time.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::RunState;
use saggar_engine as engine;
use saggar_engine::{Attempt, Effect, Entry, Event, Input, Rejected, Report, RetryPolicy, Run, RunFiles, RunStatus};
use saggar_store::{Append, Appended, BlobHash, Claimed, JsonText, Summary};
use tokio::time::sleep;

use super::bodies::{fetch, shelve_report};
use super::damage::{Unread, decoded};
use super::effects::{About, Effects, Over, Session, Task, Work};
use super::family::Batch;
use super::hub::{Hub, Topic};
use super::instruction::Instruction;
use super::journal::Journal;
use super::lease::Belief;
use super::request::{fetched, request_of, summary_request_of};
use super::sandbox_calls::{known_calls, left_for_sandboxes};
use super::stored_agent::read_entry;
use super::under_way::{Doing, Reporting, UnderWay};
use crate::fail_point::{pass, pass_numbered};

/// A shorter wait is spent here: releasing a run and claiming it again costs more.
const SAT_OUT: Duration = Duration::from_secs(2);
/// During a longer wait the run's sandbox is paused.
const SLEPT_OVER: Duration = Duration::from_secs(30);
/// Maximum sleep by the wall clock, which may be set.
const CLOCK_CHECK: Duration = Duration::from_secs(1);
/// How often a run that waits for calls of models in its sandboxes looks whether they have ended.
const SANDBOX_CALLS_CHECK: Duration = Duration::from_millis(50);
/// Time limit of a model call.
const MODEL_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Time limit of a snapshot: longer than a sandbox is kept still for one.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(2 * 60);
/// Extra time of an effect before it is abandoned here: it has its own time limit, and its own way to end.
const TIMEOUT_GRACE: Duration = Duration::from_secs(10);
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

    /// Makes events durable. After `Err`, memory is ahead of the journal: the caller must drop it.
    async fn commit(
        &self,
        driven: &mut Driven<E::Session>,
        Batch { events, children, letters, agents }: Batch,
        consumed: Vec<i64>,
        tries: u32,
    ) -> Result<Committed, Stopped> {
        for agent in agents {
            // Children of the same agent share it: it is stored once, before the first entry that names it.
            if driven.agents.insert(BlobHash::of(&agent)) {
                self.until_done(|| self.journal.put_blob(agent.clone())).await;
            }
        }
        let target = driven.head + events.len() as u64;
        let is_rolled_back = events.iter().any(|event| matches!(event, Event::RolledBack { .. }));
        let generation = is_rolled_back.then(|| driven.run.generation());
        let known_calls = known_calls(&driven.run, &events, tries);
        let before = (Arc::clone(&driven.session), driven.recorded.clone());
        if is_rolled_back {
            // The sandbox is of another generation, and no longer the run's.
            let earlier = driven.session.sandbox().or(driven.recorded.take());
            driven.session = self.session(&driven.run, None, earlier);
        }
        let entries = (driven.head + 1..).zip(events).map(|(seq, event)| Entry::new(seq, event).encode()).collect();
        let summary = self.summary(driven);
        let sandbox = summary.sandbox.clone();
        let files = Some(driven.run.files()).filter(|files| **files != driven.files);
        let append = Append {
            run: self.claimed.run.id.clone(),
            epoch: self.claimed.epoch,
            head: driven.head,
            entries,
            summary,
            consumed,
            seen: driven.seen,
            children,
            letters,
            files: files.and_then(JsonText::of),
            generation,
            left: left_for_sandboxes(&driven.run),
            known_calls,
        };
        let mut failures = 0;
        loop {
            match self.journal.append(append.clone()).await {
                Ok(Appended::Done { head }) => {
                    debug_assert_eq!(head, target);
                    break;
                }
                // Only the holder appends, so an unexpected head is the result of our own attempt that seemed to
                // fail.
                Ok(Appended::Moved { head }) if failures > 0 && head == target => break,
                Ok(Appended::Overtaken) => {
                    (driven.session, driven.recorded) = before;
                    return Ok(Committed::Overtaken);
                }
                Ok(Appended::Fenced { .. } | Appended::Finished | Appended::Absent) => return Err(Stopped::Lost),
                Ok(Appended::Moved { head }) => {
                    tracing::error!(run_id = %append.run, head, expected = append.head, "unexpected head of a journal");
                    return Err(Stopped::Lost);
                }
                // A blob that an entry names isn't stored, so a retry can't help. The run waits for a human.
                Err(error @ saggar_store::Error::Missing { .. }) => {
                    let damaged = Unread::Damaged(error.to_string());
                    return Err(self.unread(damaged).await.unwrap_or_else(|stopped| stopped));
                }
                Err(error) => {
                    tracing::warn!(run_id = %append.run, error = %error, "appending to a journal failed");
                    failures += 1;
                    self.wait_by(&STORE_RETRY, failures).await;
                }
            }
        }
        if is_rolled_back {
            pass("run-back/recorded");
            // Its programs belong to what was undone. Tried again before the next use of a sandbox.
            let _ = tokio::time::timeout(END_TIMEOUT, driven.session.end_earlier()).await;
            pass("run-back/ended");
        }
        if !append.consumed.is_empty() {
            pass("letter/consumed");
        }
        driven.head = target;
        driven.run.open_steps().iter().for_each(|open| pass_numbered("run/open", open.step));
        driven.files.clone_from(driven.run.files());
        if sandbox.is_some() {
            driven.recorded = sandbox;
        }
        self.hub.grown(&self.claimed.run.id);
        if !append.children.is_empty() {
            self.hub.wake();
        }
        append.letters.iter().for_each(|letter| self.hub.letter(&letter.run));
        Ok(Committed::Done)
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

    fn summary(&self, driven: &Driven<E::Session>) -> Summary {
        let now = self.effects.now();
        let run = &driven.run;
        let state = match run.status() {
            RunStatus::Unborn | RunStatus::Queued => RunState::Queued,
            RunStatus::Running => RunState::Running,
            RunStatus::Waiting { .. } | RunStatus::Delegating { .. } => RunState::Waiting,
            RunStatus::Asking => RunState::Asking,
            RunStatus::Parked { .. } | RunStatus::OutOfBudget { .. } => RunState::Parked,
            RunStatus::Paused => RunState::Paused,
            RunStatus::Finished => RunState::Finished,
        };
        let wake_at = match state {
            // Until its resources are released.
            RunState::Finished => driven.session.may_hold().then_some(now),
            // Any worker that finds it without a holder continues at once.
            RunState::Queued | RunState::Running => Some(now),
            _ if run.pending().next().is_some() => Some(now),
            RunState::Waiting | RunState::Asking | RunState::Parked | RunState::Paused => run.next_deadline(),
        };
        let sandbox = driven.session.sandbox().filter(|sandbox| driven.recorded.as_ref() != Some(sandbox));
        // A failed step waits for its retry, not for capacity.
        let is_queued = |open: &&engine::OpenStep| matches!(open.phase, Attempt::Delayed { .. } | Attempt::Doing);
        let room_since = run.open_steps().iter().filter(is_queued).filter_map(|open| open.delayed_since).min();
        Summary { state, at: now, wake_at, outcome: run.outcome().and_then(JsonText::of), room_since, sandbox }
    }

    /// Starts every pending effect that isn't in progress, and drops any other.
    async fn begin(&self, driven: &Driven<E::Session>, under_way: &mut UnderWay) -> Result<(), Stopped> {
        let now_doing = |pending: &engine::Pending<'_>| Doing {
            step: pending.step,
            attempt: pending.attempt,
            is_probe: matches!(pending.work, engine::Work::Probe(_)),
        };
        under_way.keep(|doing| driven.run.pending().any(|pending| now_doing(&pending) == doing));
        for pending in driven.run.pending() {
            let doing = now_doing(&pending);
            if !under_way.has(doing) {
                let report = self.perform(driven, pending, doing.is_probe).await?;
                under_way.add(doing, report);
            }
        }
        Ok(())
    }

    /// Starts an effect.
    async fn perform(
        &self,
        driven: &Driven<E::Session>,
        pending: engine::Pending<'_>,
        is_probe: bool,
    ) -> Result<Reporting, Stopped> {
        let (call, timeout) = match pending.work {
            engine::Work::CallModel
            | engine::Work::Summarize(_)
            | engine::Work::Probe(Effect::CallModel { .. } | Effect::Summarize { .. }) => (None, MODEL_TIMEOUT),
            engine::Work::TakeSnapshot => (None, SNAPSHOT_TIMEOUT),
            engine::Work::CallTool(call) => (Some(call), timeout_of(&driven.run, &call.tool)),
            engine::Work::Probe(effect) => {
                let call = effect.call().ok_or(Stopped::Broken)?;
                (Some(call), timeout_of(&driven.run, &call.tool))
            }
        };
        let work = match call {
            None if pending.work == engine::Work::TakeSnapshot => Work::TakeSnapshot,
            None => {
                let through = match pending.work {
                    engine::Work::Summarize(through) => Some(through),
                    _ => None,
                };
                let request = match through {
                    Some(through) => summary_request_of(&driven.run, through),
                    None => request_of(&driven.run),
                };
                let request = match request {
                    Some(request) => match self.until_readable(|| fetched(&self.journal, &request)).await {
                        Ok(request) => Some(Box::new(request)),
                        Err(unread) => return Err(self.unread(unread).await.unwrap_or_else(|stopped| stopped)),
                    },
                    None => None,
                };
                match through {
                    Some(_) => Work::Summarize { request },
                    None => Work::CallModel { replies: driven.run.replies(), request },
                }
            }
            Some(call) => {
                let fetched = self.until_readable(|| fetch(&self.journal, &call.arguments)).await;
                let arguments = match fetched {
                    Ok(arguments) => arguments,
                    Err(unread) => return Err(self.unread(unread).await.unwrap_or_else(|stopped| stopped)),
                };
                let tool = call.tool.clone();
                if is_probe { Work::Probe { tool, arguments } } else { Work::CallTool { tool, arguments } }
            }
        };
        // The last moment to notice that this worker was stopped between the commit and here.
        if !self.belief.holds() {
            return Err(Stopped::Lost);
        }
        let (step, attempt) = (pending.step, pending.attempt);
        let open = driven.run.open_steps().iter().find(|open| open.step == step);
        let class = open.map_or(engine::Class::Once, |open| open.class);
        let files = driven.run.restorable(step);
        let task = Task { step, attempt, key: pending.key, class, work, timeout, files };
        // Boxed before it is wrapped: it is large, and every layer would copy it.
        let doing = Box::pin(Arc::clone(&driven.session).perform(task));
        Ok(Box::pin(async move {
            match tokio::time::timeout(timeout + TIMEOUT_GRACE, doing).await {
                Ok(report) => report,
                Err(_) => Report::unknown("it exceeded its time limit"),
            }
        }))
    }

    async fn reported(&self, run: &Run, reports: Vec<(Doing, Report)>) -> Happened {
        let mut inputs = Vec::with_capacity(reports.len());
        for (Doing { step, attempt, .. }, report) in reports {
            // It was done, and nothing says so yet.
            pass_numbered("run/reported", step);
            let report = self.until_done(|| shelve_report(&self.journal, run.agent(), report.clone())).await;
            let (epoch, chance) = (self.claimed.epoch, self.effects.chance());
            inputs.push(Input::Reported { epoch, step, attempt, report, chance });
        }
        Happened::Reported(inputs)
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

/// What became of an append.
enum Committed {
    Done,
    /// Nothing was written, and memory is ahead of the journal.
    Overtaken,
}

fn timeout_of(run: &Run, tool: &str) -> Duration {
    let tool = run.agent().and_then(|agent| agent.tools.get(tool));
    tool.map_or(MODEL_TIMEOUT, |tool| Duration::from_millis(tool.timeout_ms))
}
