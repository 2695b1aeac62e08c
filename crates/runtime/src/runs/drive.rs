//! Driving one run: for as long as a worker holds it, and there is something to do.
//!
//! ```text
//!   load, fold ─▶ Claim ─▶ ┌ append what was decided ─▶ start what is pending ─▶ wait: a report, a letter, a time, the lease ┐
//!                          └──────────────────────────────────── decide ◀─────────────────────────────────────────────────────┘
//! ```
//! The state in memory runs ahead of the journal only within [`Drive::commit`]. Where that fails, everything here is dropped with what it
//! had under way, and the next holder starts from the journal. Dropped at any await, nothing is lost but time.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::RunState;
use saggar_engine as engine;
use saggar_engine::{Effect, Entry, Event, Input, Rejected, Report, Run, Status};
use saggar_store::{Append, Appended, Claimed, JsonText, Summary};
use tokio::time::sleep;

use super::bodies::{fetch, shelve_report};
use super::effects::{About, Effects, Session, Task, Work};
use super::hub::{Hub, Topic};
use super::instruction::Instruction;
use super::journal::Journal;
use super::lease::Belief;

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
/// Waits between tries of a store that fails: the first, and the longest.
const STORE_RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

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
        let mut driven = self.load().await?;
        let now = self.effects.now();
        let claim = Input::Claim { epoch: self.claimed.epoch };
        let mut events = Vec::new();
        self.input(&mut driven, now, claim, &mut events).map_err(|rejected| {
            tracing::error!(run_id = %self.claimed.run.id, error = %rejected, "a run can't be claimed");
            Stopped::Broken
        })?;
        let consumed = self.read_letters(&mut driven, &mut events).await?;
        self.commit(&mut driven, events, consumed).await?;
        let mut under_way: Option<UnderWay> = None;
        loop {
            if driven.run.outcome().is_some() {
                drop(under_way);
                driven.session.end().await;
                return Ok(Stopped::Finished);
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
            let mut events = Vec::new();
            let now = self.effects.now();
            let consumed = match happened {
                Happened::Reported(report) => {
                    let input = self.reported(&mut under_way, report).await?;
                    if let Err(rejected) = self.input(&mut driven, now, input, &mut events) {
                        tracing::debug!(run_id = %self.claimed.run.id, error = %rejected, "a report came too late");
                    }
                    Vec::new()
                }
                Happened::Letters => self.read_letters(&mut driven, &mut events).await?,
                Happened::Time => {
                    // A run that has finished has no deadline, so nothing is refused.
                    self.input(&mut driven, now, Input::Tick, &mut events).map_err(|_| Stopped::Broken)?;
                    Vec::new()
                }
            };
            if !events.is_empty() || !consumed.is_empty() {
                self.commit(&mut driven, events, consumed).await?;
            }
        }
    }

    /// The run as its journal has it.
    async fn load(&self) -> Result<Driven<E::Session>, Stopped> {
        let row = &self.claimed.run;
        let mut run = Run::new();
        let mut head = 0;
        loop {
            let page = self.until_done(|| self.journal.page(row.id.clone(), head)).await;
            let Some(last) = page.last() else { break };
            head = last.seq;
            for entry in &page {
                match Entry::decode(&entry.entry) {
                    Ok(entry) => run.apply(&entry.event),
                    Err(error) => {
                        tracing::error!(run_id = %row.id, seq = entry.seq, error = %error, "a journal can't be read");
                        return Err(Stopped::Broken);
                    }
                }
            }
        }
        let agent = run.agent().cloned().ok_or(Stopped::Broken)?;
        let about = About {
            run: row.id.clone(),
            generation: run.generation(),
            project: row.project.clone(),
            agent,
            sandbox: row.sandbox.clone(),
        };
        let session = Arc::new(self.effects.session(about));
        Ok(Driven { run, head, session, recorded: row.sandbox.clone() })
    }

    /// Decides, and takes in what was decided: from here to the commit memory is ahead of the journal.
    fn input(
        &self,
        driven: &mut Driven<E::Session>,
        now: saggar_domain::Timestamp,
        input: Input,
        events: &mut Vec<Event>,
    ) -> Result<(), Rejected> {
        let decided = driven.run.decide(now, &input)?;
        for event in &decided {
            driven.run.apply(event);
        }
        events.extend(decided);
        Ok(())
    }

    /// Takes in what people wrote, in order. What the run can't use now is answered by nothing; what it has no room for stays.
    async fn read_letters(
        &self,
        driven: &mut Driven<E::Session>,
        events: &mut Vec<Event>,
    ) -> Result<Vec<i64>, Stopped> {
        let letters = self.until_done(|| self.journal.letters(self.claimed.run.id.clone())).await;
        let mut consumed = Vec::new();
        for letter in letters {
            let Some(instruction) = Instruction::decode(&letter) else {
                tracing::error!(run_id = %self.claimed.run.id, "a letter of a newer version waits for a newer program");
                break;
            };
            match self.input(driven, self.effects.now(), instruction.into_input(&letter.id), events) {
                Ok(()) => {}
                Err(Rejected::TooManySignals(_)) => break,
                Err(rejected) => {
                    tracing::info!(run_id = %self.claimed.run.id, error = %rejected, "what was told came too late");
                }
            }
            consumed.push(letter.n);
        }
        Ok(consumed)
    }

    /// Makes events durable. `Err` leaves memory ahead of the journal: the caller must drop it.
    async fn commit(
        &self,
        driven: &mut Driven<E::Session>,
        events: Vec<Event>,
        consumed: Vec<i64>,
    ) -> Result<(), Stopped> {
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
        };
        let mut wait = STORE_RETRY.0;
        let mut has_failed = false;
        loop {
            match self.journal.append(append.clone()).await {
                Ok(Appended::Done { head }) => {
                    debug_assert_eq!(head, target);
                    break;
                }
                // Only who holds the run appends: what is there already is what a try that seemed to fail has written.
                Ok(Appended::Moved { head }) if has_failed && head == target => break,
                Ok(Appended::Fenced { .. } | Appended::Absent) => return Err(Stopped::Lost),
                Ok(Appended::Moved { head }) => {
                    tracing::error!(run_id = %append.run, head, expected = append.head, "a journal isn't where it was left");
                    return Err(Stopped::Lost);
                }
                Err(error) => {
                    tracing::warn!(run_id = %append.run, error = %error, "a journal can't be appended to");
                    has_failed = true;
                    sleep(wait).await;
                    wait = (wait * 2).min(STORE_RETRY.1);
                }
            }
        }
        driven.head = target;
        if sandbox.is_some() {
            driven.recorded = sandbox;
        }
        self.hub.grown(&self.claimed.run.id);
        Ok(())
    }

    fn summary(&self, driven: &Driven<E::Session>) -> Summary {
        let now = self.effects.now();
        let run = &driven.run;
        let state = match run.status() {
            Status::Unborn | Status::Queued => RunState::Queued,
            Status::Running => RunState::Running,
            Status::Waiting { .. } => RunState::Waiting,
            Status::Asking => RunState::Asking,
            Status::Parked { .. } => RunState::Parked,
            Status::Paused => RunState::Paused,
            Status::Finished => RunState::Finished,
        };
        let wake_at = match state {
            // Whoever finds it without a holder goes on at once.
            RunState::Queued | RunState::Running => Some(now),
            RunState::Waiting | RunState::Asking | RunState::Parked | RunState::Paused => run.next_deadline(),
            RunState::Finished => None,
        };
        let sandbox = driven.session.sandbox().filter(|sandbox| driven.recorded.as_ref() != Some(sandbox));
        Summary { state, at: now, wake_at, outcome: run.outcome().and_then(JsonText::of), sandbox }
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
                let arguments = self.until_done(|| fetch(&self.journal, &call.arguments)).await;
                let tool = call.tool.clone();
                if is_probe { Work::Probe { tool, arguments } } else { Work::CallTool { tool, arguments } }
            }
        };
        // The last moment to notice that this worker was stopped between the commit and here.
        if !self.belief.holds() {
            return Err(Stopped::Lost);
        }
        let (step, attempt) = (pending.step, pending.attempt);
        let task = Task { step, attempt, key: pending.key, work, timeout };
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
            Status::Asking | Status::Parked { .. } | Status::Paused => true,
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
    async fn until_done<T, F, Fut>(&self, work: F) -> T
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, saggar_store::Error>>,
    {
        let mut wait = STORE_RETRY.0;
        loop {
            match work().await {
                Ok(done) => return done,
                Err(error) => {
                    tracing::warn!(run_id = %self.claimed.run.id, error = %error, "the store failed");
                    sleep(wait).await;
                    wait = (wait * 2).min(STORE_RETRY.1);
                }
            }
        }
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
