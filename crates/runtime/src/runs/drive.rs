//! Driving one run: for as long as a worker holds it, and there is something to do.
//!
//! ```text
//!   load, fold ─▶ Claim ─▶ ┌ append what was decided ─▶ start what is pending ─▶ wait: a report, a letter, a time, the lease ┐
//!                          └──────────────────────────────────── decide ◀─────────────────────────────────────────────────────┘
//! ```
//! The state in memory runs ahead of the journal only within [`Drive::commit`]. Where that fails, everything here is dropped with what it
//! had under way, and the next holder starts from the journal. Dropped at any await, nothing is lost but time.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::RunState;
use saggar_engine as engine;
use saggar_engine::{Attempt, Effect, Entry, Input, Rejected, Report, RetryPolicy, Run, Status};
use saggar_store::{Append, Appended, BlobHash, Claimed, JsonText, Summary};
use tokio::time::sleep;

use super::bodies::{fetch, shelve_report};
use super::damage::{Unread, decoded};
use super::effects::{About, Effects, Session, Task, Work};
use super::family::Batch;
use super::hub::{Hub, Topic};
use super::instruction::Instruction;
use super::journal::Journal;
use super::lease::Belief;
use super::stored_agent::read_entry;

/// A wait that is shorter than this is sat out: giving a run back and taking it again costs more.
const SAT_OUT: Duration = Duration::from_secs(2);
/// What a run holds is put to sleep for a wait that is longer than this.
const SLEPT_OVER: Duration = Duration::from_secs(30);
/// The longest sleep by a clock that somebody may set.
const CLOCK_CHECK: Duration = Duration::from_secs(1);
/// The longest that a model may take.
const MODEL_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// What an effect may take beyond its time before it is given up from here: it has its own clock, and its own way to end.
const TIMEOUT_GRACE: Duration = Duration::from_secs(10);
/// How a store that fails is tried again. The end of the lease is the end of it.
pub(super) const STORE_RETRY: RetryPolicy = RetryPolicy { attempts_max: u32::MAX, first_ms: 20, most_ms: 500 };
/// How it is tried again to let go of what a run held. After that, its own time ends it.
const END_RETRY: RetryPolicy = RetryPolicy { attempts_max: 6, first_ms: 200, most_ms: 5000 };
/// The longest that one such try may take.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// Drives one run.
pub(super) struct Drive<J, E> {
    pub(super) journal: J,
    pub(super) effects: E,
    pub(super) hub: Hub,
    pub(super) belief: Belief,
    pub(super) claimed: Claimed,
}

/// Why a run is no longer driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopped {
    /// It is over.
    Finished,
    /// There is nothing to do for now: it was given back.
    Resting,
    /// It is another's, or may be.
    Lost,
    /// Its journal can't be read.
    Broken,
}

/// A run in memory.
struct Driven<S> {
    run: Run,
    head: u64,
    session: Arc<S>,
    /// The sandbox that the row names.
    recorded: Option<saggar_domain::SandboxId>,
    /// The newest letter that was looked at. Those that were left don't keep the run awake.
    seen: i64,
    /// Agents of its children that are known to be stored.
    agents: BTreeSet<BlobHash>,
}

/// An effect under way.
struct UnderWay {
    step: u64,
    attempt: u32,
    is_probe: bool,
    report: Pin<Box<dyn Future<Output = Report> + Send>>,
}

impl<J: Journal, E: Effects> Drive<J, E> {
    /// Drives the run until there is nothing to do, or it is another's.
    pub(super) async fn run(self) -> Stopped {
        let run = self.claimed.run.id.clone();
        let topic = self.hub.topic(&run);
        let belief = self.belief.clone();
        let stopped = tokio::select! {
            biased;
            // Whatever is under way is dropped: it may be another's by now.
            () = belief.lost() => Stopped::Lost,
            outcome = self.go(&topic) => match outcome {
                Ok(stopped) => stopped,
                Err(stopped @ Stopped::Lost) => {
                    // Where it isn't another's after all, it goes on at once; where it is, this changes nothing.
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
            // Its worker was lost between its end and letting go of what it held, or a person ended it as damaged: then its journal
            // has no end, and must not go on.
            return Ok(self.finish(&driven).await);
        }
        let now = self.effects.now();
        let claim = Input::claim(self.claimed.epoch);
        let mut batch = Batch::default();
        self.input(&mut driven, now, claim, &mut batch).map_err(|rejected| {
            tracing::error!(run_id = %self.claimed.run.id, error = %rejected, "a run can't be claimed");
            Stopped::Broken
        })?;
        let consumed = self.read_letters(&mut driven, &mut batch).await?;
        self.commit(&mut driven, batch, consumed).await?;
        let mut under_way: Option<UnderWay> = None;
        loop {
            if driven.run.outcome().is_some() {
                drop(under_way);
                return Ok(self.finish(&driven).await);
            }
            self.begin(&driven, &mut under_way).await?;
            if under_way.is_none() && !self.sits_out(&driven.run) {
                return self.rest(&driven).await;
            }
            let happened = tokio::select! {
                biased;
                report = report_of(&mut under_way) => Happened::Reported(report),
                () = topic.letters.notified() => Happened::Letters,
                () = self.deadline(&driven.run) => Happened::Time,
            };
            let mut batch = Batch::default();
            let now = self.effects.now();
            let consumed = match happened {
                Happened::Reported(report) => {
                    let input = self.reported(&mut under_way, report).await?;
                    if let Err(rejected) = self.input(&mut driven, now, input, &mut batch) {
                        tracing::debug!(run_id = %self.claimed.run.id, error = %rejected, "a report came too late");
                    }
                    Vec::new()
                }
                Happened::Letters => self.read_letters(&mut driven, &mut batch).await?,
                Happened::Time => {
                    // A run that has finished has no deadline, so nothing is refused.
                    self.input(&mut driven, now, Input::Tick, &mut batch).map_err(|_| Stopped::Broken)?;
                    Vec::new()
                }
            };
            if !batch.events.is_empty() || !consumed.is_empty() {
                self.commit(&mut driven, batch, consumed).await?;
            }
        }
    }

    /// The run as its journal has it.
    async fn load(&self) -> Result<Driven<E::Session>, Unread> {
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
        let agent = run.agent().cloned().ok_or_else(|| Unread::Damaged("its journal has no beginning".to_owned()))?;
        let about = About {
            run: row.id.clone(),
            generation: run.generation(),
            project: row.project.clone(),
            agent,
            sandbox: row.sandbox.clone(),
        };
        let session = Arc::new(self.effects.session(about));
        Ok(Driven { run, head, session, recorded: row.sandbox.clone(), seen: 0, agents: BTreeSet::new() })
    }

    /// Decides, and takes in what was decided: from here to the commit memory is ahead of the journal.
    fn input(
        &self,
        driven: &mut Driven<E::Session>,
        now: saggar_domain::Timestamp,
        input: Input,
        batch: &mut Batch,
    ) -> Result<(), Rejected> {
        for event in driven.run.decide(now, &input)? {
            batch.take(&self.claimed.run.project, &mut driven.run, event);
        }
        Ok(())
    }

    /// Takes in what waits in the inbox: what steers the run first, then what is said to it, each in order. All of it is read, so that nothing
    /// waits behind anything else. Only a letter of a newer version stays, for a newer program.
    async fn read_letters(&self, driven: &mut Driven<E::Session>, batch: &mut Batch) -> Result<Vec<i64>, Stopped> {
        let letters = self.until_done(|| self.journal.letters(self.claimed.run.id.clone())).await;
        driven.seen = letters.last().map_or(driven.seen, |letter| letter.n.max(driven.seen));
        let mut read = Vec::with_capacity(letters.len());
        for letter in &letters {
            match Instruction::decode(letter) {
                Some(instruction) => read.push((instruction, letter)),
                None => {
                    tracing::error!(run_id = %self.claimed.run.id, "a letter of a newer version waits for a newer program");
                }
            }
        }
        read.sort_by_key(|(instruction, _)| instruction.is_data());
        let mut consumed = Vec::with_capacity(read.len());
        for (instruction, letter) in read {
            let input = instruction.into_input(letter, &driven.run);
            if let Err(rejected) = self.input(driven, self.effects.now(), input, batch) {
                tracing::info!(run_id = %self.claimed.run.id, error = %rejected, "a letter changed nothing");
            }
            consumed.push(letter.n);
        }
        Ok(consumed)
    }

    /// Makes events durable. `Err` leaves memory ahead of the journal: the caller must drop it.
    async fn commit(
        &self,
        driven: &mut Driven<E::Session>,
        Batch { events, children, letters, agents }: Batch,
        consumed: Vec<i64>,
    ) -> Result<(), Stopped> {
        for agent in agents {
            // The children of one agent share it: it is written once, before the first entry that names it.
            if driven.agents.insert(BlobHash::of(&agent)) {
                self.until_done(|| self.journal.put_blob(agent.clone())).await;
            }
        }
        let target = driven.head + events.len() as u64;
        let entries = (driven.head + 1..).zip(events).map(|(seq, event)| Entry::new(seq, event).encode()).collect();
        let summary = self.summary(driven);
        let sandbox = summary.sandbox.clone();
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
        };
        let mut failures = 0;
        loop {
            match self.journal.append(append.clone()).await {
                Ok(Appended::Done { head }) => {
                    debug_assert_eq!(head, target);
                    break;
                }
                // Only who holds the run appends: what is there already is what a try that seemed to fail has written.
                Ok(Appended::Moved { head }) if failures > 0 && head == target => break,
                Ok(Appended::Fenced { .. } | Appended::Finished | Appended::Absent) => return Err(Stopped::Lost),
                Ok(Appended::Moved { head }) => {
                    tracing::error!(run_id = %append.run, head, expected = append.head, "a journal isn't where it was left");
                    return Err(Stopped::Lost);
                }
                // A blob that an entry names isn't stored, so a retry can't help. The run waits for a human.
                Err(error @ saggar_store::Error::Missing { .. }) => {
                    let damaged = Unread::Damaged(error.to_string());
                    return Err(self.unread(damaged).await.unwrap_or_else(|stopped| stopped));
                }
                Err(error) => {
                    tracing::warn!(run_id = %append.run, error = %error, "a journal can't be appended to");
                    failures += 1;
                    self.wait_by(&STORE_RETRY, failures).await;
                }
            }
        }
        driven.head = target;
        if sandbox.is_some() {
            driven.recorded = sandbox;
        }
        self.hub.grown(&self.claimed.run.id);
        if !append.children.is_empty() {
            self.hub.wake();
        }
        append.letters.iter().for_each(|letter| self.hub.letter(&letter.run));
        Ok(())
    }

    /// The run is over: what it holds is let go of, and then nobody looks at it again.
    async fn finish(&self, driven: &Driven<E::Session>) -> Stopped {
        if !driven.session.may_hold() && self.claimed.run.state != RunState::Finished {
            return Stopped::Finished;
        }
        self.let_go(&driven.session).await
    }

    pub(super) async fn let_go(&self, session: &E::Session) -> Stopped {
        let (run, epoch) = (&self.claimed.run, self.claimed.epoch);
        let mut attempt = 1;
        // Whoever doesn't answer is asked again.
        while !tokio::time::timeout(END_TIMEOUT, session.end()).await.unwrap_or(false) {
            if END_RETRY.wait_ms(attempt, 0).is_none() {
                tracing::error!(run_id = %run.id, attempt, "what a run held can't be ended; its own time will");
                break;
            }
            tracing::warn!(run_id = %run.id, attempt, "what a run held can't be ended yet");
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
            Status::Unborn | Status::Queued => RunState::Queued,
            Status::Running => RunState::Running,
            Status::Waiting { .. } | Status::Delegating { .. } => RunState::Waiting,
            Status::Asking => RunState::Asking,
            Status::Parked { .. } => RunState::Parked,
            Status::Paused => RunState::Paused,
            Status::Finished => RunState::Finished,
        };
        let wake_at = match state {
            // Whoever finds it without a holder goes on at once.
            RunState::Queued | RunState::Running => Some(now),
            RunState::Waiting | RunState::Asking | RunState::Parked | RunState::Paused => run.next_deadline(),
            // Until what it holds is let go of.
            RunState::Finished => driven.session.may_hold().then_some(now),
        };
        let sandbox = driven.session.sandbox().filter(|sandbox| driven.recorded.as_ref() != Some(sandbox));
        // A step that failed waits for its next try, and for no room.
        let is_queued = |open: &&engine::OpenStep| matches!(open.phase, Attempt::Delayed { .. } | Attempt::Doing);
        let room_since = run.open_step().filter(is_queued).and_then(|open| open.delayed_since);
        Summary { state, at: now, wake_at, outcome: run.outcome().and_then(JsonText::of), room_since, sandbox }
    }

    /// Sees to it that what is pending is under way, and nothing else.
    async fn begin(&self, driven: &Driven<E::Session>, under_way: &mut Option<UnderWay>) -> Result<(), Stopped> {
        let Some(pending) = driven.run.pending() else {
            *under_way = None;
            return Ok(());
        };
        let is_probe = matches!(pending.work, engine::Work::Probe(_));
        let is_same =
            |this: &UnderWay| (this.step, this.attempt, this.is_probe) == (pending.step, pending.attempt, is_probe);
        if under_way.as_ref().is_some_and(is_same) {
            return Ok(());
        }
        *under_way = None;
        let (call, timeout) = match pending.work {
            engine::Work::CallModel | engine::Work::Probe(Effect::CallModel { .. }) => (None, MODEL_TIMEOUT),
            engine::Work::CallTool(call) => (Some(call), timeout_of(&driven.run, &call.tool)),
            engine::Work::Probe(effect) => {
                let call = effect.call().ok_or(Stopped::Broken)?;
                (Some(call), timeout_of(&driven.run, &call.tool))
            }
        };
        let work = match call {
            None => Work::CallModel { replies: driven.run.replies() },
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
        let class = driven.run.open_step().map_or(engine::Class::Once, |open| open.class);
        let task = Task { step, attempt, key: pending.key, class, work, timeout };
        // In a box before anything is put around it: it is large, and every layer would copy it.
        let doing = Box::pin(Arc::clone(&driven.session).perform(task));
        let bounded = async move {
            match tokio::time::timeout(timeout + TIMEOUT_GRACE, doing).await {
                Ok(report) => report,
                Err(_) => Report::Unknown { reason: "it did not return in its time".to_owned() },
            }
        };
        *under_way = Some(UnderWay { step, attempt, is_probe, report: Box::pin(bounded) });
        Ok(())
    }

    async fn reported(&self, under_way: &mut Option<UnderWay>, report: Report) -> Result<Input, Stopped> {
        let UnderWay { step, attempt, .. } = under_way.take().expect("only what is under way reports");
        let report = self.until_done(|| shelve_report(&self.journal, report.clone())).await;
        Ok(Input::Reported { epoch: self.claimed.epoch, step, attempt, report, chance: self.effects.chance() })
    }

    /// Whether a run with nothing under way is kept: it goes on in a moment.
    fn sits_out(&self, run: &Run) -> bool {
        match run.status() {
            Status::Waiting { until } => until < self.effects.now().after(SAT_OUT),
            Status::Unborn
            | Status::Queued
            | Status::Running
            | Status::Delegating { .. }
            | Status::Asking
            | Status::Parked { .. }
            | Status::Paused
            | Status::Finished => false,
        }
    }

    /// Gives the run back. A letter that comes meanwhile has made it due.
    async fn rest(&self, driven: &Driven<E::Session>) -> Result<Stopped, Stopped> {
        let is_long = match driven.run.status() {
            Status::Waiting { until } => until > self.effects.now().after(SLEPT_OVER),
            Status::Delegating { .. } | Status::Asking | Status::Parked { .. } | Status::Paused => true,
            Status::Unborn | Status::Queued | Status::Running | Status::Finished => false,
        };
        if is_long {
            driven.session.rest().await;
        }
        let (run, epoch) = (self.claimed.run.id.clone(), self.claimed.epoch);
        self.until_done(|| self.journal.release(run.clone(), epoch)).await;
        self.hub.wake();
        Ok(Stopped::Resting)
    }

    /// Waits for the run's next deadline, if it has one.
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

    /// Tries until the store does it. The end of the lease is the end of this too: [`Drive::run`] drops it.
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

    /// Waits before the next try.
    pub(super) async fn wait_by(&self, policy: &RetryPolicy, failures: u32) {
        let wait = policy.wait_ms(failures, self.effects.chance()).unwrap_or(policy.most_ms);
        sleep(Duration::from_millis(wait)).await;
    }
}

enum Happened {
    Reported(Report),
    Letters,
    Time,
}

async fn report_of(under_way: &mut Option<UnderWay>) -> Report {
    match under_way {
        Some(under_way) => (&mut under_way.report).await,
        None => std::future::pending().await,
    }
}

fn timeout_of(run: &Run, tool: &str) -> Duration {
    let tool = run.agent().and_then(|agent| agent.tools.get(tool));
    tool.map_or(MODEL_TIMEOUT, |tool| Duration::from_millis(tool.timeout_ms))
}
