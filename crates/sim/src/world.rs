//! The outside world: a ledger of effects that a worker can only change by executing one. It also checks the
//! invariants.
//!
//! A call that has left its worker arrives even if the worker is killed. Keyed and probeable executors know their
//! keys and do each effect once; the others do an effect every time it arrives.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use saggar_domain::model::Tariff;
use saggar_domain::{RunId, SandboxId, Timestamp, Uptime};
use saggar_engine::{Body, Class, Effect, EffectFailure, Event, ModelReply, Report, ToolResult, Usage, replay};
use saggar_runtime::runs::{About, Effects, Over, Session, Task, Work};
use saggar_store::{Append, Appended};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

use crate::agents;
use crate::chance::Chance;
use crate::faults::{AtCall, EffectFate, FaultPlan, StoreFate};
use crate::files::Files;
use crate::gate::Gate;
use crate::memory::Memory;

/// Tools that need a sandbox; the first call creates it.
pub(crate) const IN_A_SANDBOX: [&str; 2] = ["probeable", "once"];
/// Start of simulated time.
const EPOCH_MS: u64 = 1_800_000_000_000;

/// Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct World {
    inner: Arc<Mutex<Inner>>,
    killing: Arc<Notify>,
    begun: Instant,
    memory: Memory,
}

#[derive(Debug)]
struct Inner {
    chance: Chance,
    plan: FaultPlan,
    calls: u64,
    clock_ms: i64,
    outage_until: Option<Instant>,
    /// How often each effect was done.
    ledger: BTreeMap<String, u64>,
    /// Calls that have left a worker and not yet arrived.
    in_transit: BTreeMap<String, u64>,
    /// The sandbox of each run that has had one, and whether it is live.
    sandboxes: BTreeMap<RunId, bool>,
    files: Files,
    kills: VecDeque<usize>,
    trace: Vec<String>,
    violations: Vec<String>,
}

impl World {
    pub(crate) fn new(seed: u64, plan: FaultPlan, memory: Memory) -> Self {
        let inner = Inner {
            chance: Chance::new(seed),
            plan,
            calls: 0,
            clock_ms: 0,
            outage_until: None,
            ledger: BTreeMap::new(),
            in_transit: BTreeMap::new(),
            sandboxes: BTreeMap::new(),
            files: Files::default(),
            kills: VecDeque::new(),
            trace: Vec::new(),
            violations: Vec::new(),
        };
        Self { inner: Arc::new(Mutex::new(inner)), killing: Arc::default(), begun: Instant::now(), memory }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The wall clock, which disturbances set.
    pub(crate) fn now(&self) -> Timestamp {
        let passed = i64::try_from(self.begun.elapsed().as_millis()).unwrap_or(i64::MAX);
        let moved = passed.saturating_add(self.lock().clock_ms);
        Timestamp::from_millis(EPOCH_MS.saturating_add_signed(moved))
    }

    /// The monotonic clock of leases, which no disturbance sets.
    pub(crate) fn uptime(&self) -> Uptime {
        Uptime::from_millis(u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Sets the clock's error.
    pub(crate) fn set_clock(&self, off_ms: i64) {
        let before = std::mem::replace(&mut self.lock().clock_ms, off_ms);
        let direction = if off_ms < before { "back" } else { "forward" };
        self.note(format!("the clock is set {direction} by {} ms", off_ms.abs_diff(before)));
    }

    pub(crate) fn fail_store(&self, span: Duration) {
        self.lock().outage_until = Some(Instant::now() + span);
        self.note(format!("the store fails for {} ms", span.as_millis()));
    }

    pub(crate) fn chance<T>(&self, draw: impl FnOnce(&mut Chance) -> T) -> T {
        draw(&mut self.lock().chance)
    }

    /// From now on no fault happens.
    pub(crate) fn heal(&self) {
        let mut inner = self.lock();
        inner.plan = FaultPlan { at_call: inner.plan.at_call, ..FaultPlan::none() };
        inner.outage_until = None;
    }

    pub(crate) fn note(&self, what: String) {
        let at = self.begun.elapsed().as_millis();
        self.lock().trace.push(format!("{at} {what}"));
    }

    pub(crate) fn violation(&self, what: String) {
        self.note(format!("VIOLATION {what}"));
        self.lock().violations.push(what);
    }

    /// Marks a worker to be killed by the scenario.
    pub(crate) fn kill(&self, worker: usize) {
        self.lock().kills.push_back(worker);
        self.killing.notify_one();
    }

    pub(crate) async fn killing(&self) -> usize {
        loop {
            if let Some(worker) = self.lock().kills.pop_front() {
                return worker;
            }
            self.killing.notified().await;
        }
    }

    /// Trace, violations, number of store calls, ledger.
    pub(crate) fn close(&self) -> (Vec<String>, Vec<String>, u64, BTreeMap<String, u64>) {
        let inner = self.lock();
        (inner.trace.clone(), inner.violations.clone(), inner.calls, inner.ledger.clone())
    }

    /// Violations of a run's files, as far as its journal says.
    pub(crate) fn check_files(&self, run: &RunId, events: &[Event]) -> Vec<String> {
        self.lock().files.check(run, events)
    }

    /// Number of snapshots that were taken, and of sandboxes that were lost.
    pub(crate) fn snapshots(&self) -> (usize, u64) {
        let inner = self.lock();
        (inner.files.taken(), inner.files.losses)
    }

    /// Runs with a live sandbox.
    pub(crate) fn sandboxes(&self) -> Vec<RunId> {
        self.lock().sandboxes.iter().filter(|(_, lives)| **lives).map(|(run, _)| run.clone()).collect()
    }

    /// Whether an effect was done, as a human would find out; `None` while that may still change.
    pub(crate) fn was_done(&self, key: &str) -> Option<bool> {
        let inner = self.lock();
        let is_settled = inner.in_transit.get(key).is_none_or(|calls| *calls == 0);
        is_settled.then(|| inner.ledger.contains_key(key))
    }

    pub(crate) fn store_fate(&self) -> StoreFate {
        let mut inner = self.lock();
        inner.calls += 1;
        let (plan, call) = (inner.plan, inner.calls);
        let is_out = inner.outage_until.is_some_and(|until| Instant::now() < until);
        let chance = &mut inner.chance;
        let (there, back) = (chance.span(plan.store_ms), chance.span(plan.store_ms));
        let failed = chance.per_mille(plan.store_fails);
        let after = chance.per_mille(500);
        let again = chance.per_mille(plan.store_repeats);
        let again_after = chance.span(2000);
        let at_call = match plan.at_call {
            Some((at, what)) if at == call => Some(what),
            _ if is_out || (failed && !after) => Some(AtCall::FailBefore),
            _ if failed => Some(AtCall::FailAfter),
            _ => None,
        };
        StoreFate { there, back, at_call, again_after: again.then_some(again_after) }
    }

    /// The invariants after every append.
    pub(crate) fn check_append(&self, append: &Append, appended: Appended) {
        if !matches!(appended, Appended::Done { .. }) {
            return;
        }
        // New entries are at the end; whole journals are replayed when the simulation ends.
        if let Err(what) = self.memory.events(&append.run, check_journal) {
            self.violation(format!("{}: {what}", append.run));
        }
    }

    /// An effect that starts must have its intent in the journal.
    fn check_intent(&self, run: &RunId, task: &Task) {
        let is_intent = |event: &Event| match (event, &task.work) {
            (
                Event::StepIntended { step, attempt, .. },
                Work::CallModel { .. } | Work::Summarize { .. } | Work::CallTool { .. } | Work::TakeSnapshot,
            ) => (*step, *attempt) == (task.step, task.attempt),
            (Event::StepProbed { step, .. }, Work::Probe { .. }) => *step == task.step,
            _ => false,
        };
        if !self.memory.events(run, |events| events.iter().rev().any(is_intent)) {
            self.violation(format!("{run}: step {} began without an intent", task.step));
        }
    }

    fn effect_fate(&self) -> (EffectFate, Duration, Duration) {
        let mut inner = self.lock();
        let plan = inner.plan;
        let chance = &mut inner.chance;
        let (there, back) = (chance.span(plan.effect_ms), chance.span(plan.effect_ms));
        let drawn = chance.below(1000);
        let is_first_half = chance.per_mille(500);
        let lost_from = plan.effect_fails;
        let hangs_from = lost_from + plan.effect_lost;
        let fate = match drawn {
            drawn if drawn < lost_from => EffectFate::Failed,
            drawn if drawn < hangs_from && is_first_half => EffectFate::LostBefore,
            drawn if drawn < hangs_from => EffectFate::LostAfter,
            drawn if drawn < hangs_from + plan.effect_hangs => EffectFate::Hangs,
            drawn if drawn < hangs_from + plan.effect_hangs + plan.no_room => EffectFate::NoRoom,
            _ => EffectFate::Done,
        };
        (fate, there, back)
    }

    /// The call arrives.
    fn carry_out(&self, about: &About, task: &Task) -> Report {
        let key = task.key.as_str();
        let returned = |tool: &str| {
            let result = ToolResult::new(Body::text(agents::result(tool, key)), false);
            Report::Returned { result, snapshot: None }
        };
        match &task.work {
            Work::CallModel { replies, .. } => {
                let reply = agents::reply(&about.agent, *replies);
                Report::Replied { reply, usage: Usage { tokens: 1, micros: 1 } }
            }
            Work::Summarize { .. } => {
                let reply = ModelReply::new(Body::text(agents::SUMMARY), Vec::new());
                Report::Replied { reply, usage: Usage { tokens: 1, micros: 1 } }
            }
            Work::CallTool { tool, .. } => {
                let mut inner = self.lock();
                if IN_A_SANDBOX.contains(&tool.as_str()) {
                    let (run, generation, files) = (&about.run, about.generation, &task.files);
                    let is_lost = inner.plan.sandbox_lost > 0 && {
                        let lost = inner.plan.sandbox_lost;
                        inner.chance.per_mille(lost)
                    };
                    // What has been done once isn't done in another sandbox.
                    if is_lost && !inner.ledger.contains_key(key) && inner.files.lose(run, generation, files) {
                        let result = ToolResult::new(Body::text("nothing was done"), true);
                        let result = ToolResult { restored: Some(Box::new(files.clone())), ..result };
                        return Report::Returned { result, snapshot: None };
                    }
                    inner.files.change(run, generation, files, key);
                    // A sandbox that has ended is not created again.
                    inner.sandboxes.entry(about.run.clone()).or_insert(true);
                }
                let times = inner.ledger.entry(key.to_owned()).or_default();
                match tool.as_str() {
                    "keyed" | "probeable" => *times = 1,
                    _ => *times += 1,
                }
                returned(tool)
            }
            Work::TakeSnapshot => {
                let snapshot = self.lock().files.take(&about.run, about.generation, &task.key);
                Report::Kept { snapshot }
            }
            Work::Probe { tool, .. } => {
                if self.lock().ledger.contains_key(key) {
                    returned(tool)
                } else {
                    Report::NeverDone
                }
            }
        }
    }
}

fn needs_a_sandbox(work: &Work) -> bool {
    matches!(work, Work::CallTool { tool, .. } if IN_A_SANDBOX.contains(&tool.as_str()))
}

/// Invariants of every journal at every moment.
fn check_journal(events: &[Event]) -> Result<(), String> {
    let finished = events.iter().position(|event| matches!(event, Event::RunFinished { .. }));
    if finished.is_some_and(|at| at + 1 < events.len()) {
        return Err("something happened to a run that has finished".to_owned());
    }
    let (mut epoch, mut intended) = (0, 0);
    let mut open: BTreeMap<u64, &Effect> = BTreeMap::new();
    for event in events {
        match event {
            Event::Claimed { epoch: next, .. } if *next <= epoch => {
                return Err(format!("epoch {next} came after {epoch}"));
            }
            Event::Claimed { epoch: next, .. } => epoch = *next,
            Event::StepIntended { step, attempt: 1, effect, class, .. } if !open.contains_key(step) => {
                if *step != intended + 1 {
                    return Err(format!("step {step} was intended after step {intended}"));
                }
                intended = *step;
                let is_snapshot = matches!(effect, Effect::TakeSnapshot);
                let is_lonely = |class: Class| is_snapshot || matches!(class, Class::Model | Class::Once);
                let has_lonely = |effect: &&Effect| effect.call().is_none_or(|call| call.tool == "once");
                if !open.is_empty() && (is_lonely(*class) || open.values().any(has_lonely)) {
                    return Err(format!("step {step} was intended beside {open:?}"));
                }
                open.insert(*step, effect);
                if open.len() > agents::OPEN_MAX as usize {
                    return Err(format!("{} steps are open", open.len()));
                }
            }
            Event::StepIntended { step, .. } if !open.contains_key(step) => {
                return Err(format!("step {step} was tried again after its end"));
            }
            Event::StepSettled { step, .. } | Event::StepAbandoned { step, .. } => {
                open.remove(step).ok_or_else(|| format!("step {step} was settled and is not open"))?;
            }
            Event::RunFinished { .. } if !open.is_empty() => {
                return Err(format!("the run ended with open steps {:?}", open.keys()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Compares a whole journal with its replay.
pub(crate) fn check_replay(events: &[Event]) -> Result<(), String> {
    match replay(events).divergence {
        Some(divergence) => Err(format!("a replay differs at {}: {divergence:?}", divergence.at)),
        None => Ok(()),
    }
}

/// The world as seen by one worker.
#[derive(Clone, Debug)]
pub(crate) struct SimEffects {
    pub(crate) world: World,
    pub(crate) gate: Gate,
    pub(crate) worker: usize,
}

impl Effects for SimEffects {
    type Session = SimSession;

    fn now(&self) -> Timestamp {
        self.world.now()
    }

    fn uptime(&self) -> Uptime {
        self.world.uptime()
    }

    fn chance(&self) -> u64 {
        self.world.chance(Chance::number)
    }

    async fn room(&self) -> u32 {
        1
    }

    fn session(&self, about: About) -> SimSession {
        SimSession { world: self.world.clone(), about, worker: self.worker }
    }

    async fn within<F: Future + Send>(&self, work: F) -> F::Output {
        self.gate.within(work).await
    }
}

/// The world for one run.
#[derive(Debug)]
pub(crate) struct SimSession {
    world: World,
    about: About,
    worker: usize,
}

impl Session for SimSession {
    async fn perform(self: Arc<Self>, task: Task) -> Report {
        let world = self.world.clone();
        world.check_intent(&self.about.run, &task);
        let (fate, there, back) = world.effect_fate();
        let (key, worker) = (task.key.as_str().to_owned(), self.worker);
        world.note(format!("worker {worker}: begins {key}, attempt {}, {fate:?}", task.attempt));
        *world.lock().in_transit.entry(key.clone()).or_default() += 1;
        let (reply, answer) = oneshot::channel();
        let failure = |code: &str| EffectFailure::new(code, String::new(), true);
        let unknown = || Report::unknown("the answer was lost");
        tokio::spawn(async move {
            sleep(there).await;
            let report = match fate {
                EffectFate::Failed => Report::Failed { failure: failure("failed"), usage: Usage::default() },
                EffectFate::NoRoom if needs_a_sandbox(&task.work) => Report::Delayed { reason: "no room".to_owned() },
                EffectFate::LostBefore => unknown(),
                EffectFate::LostAfter => {
                    self.world.carry_out(&self.about, &task);
                    unknown()
                }
                EffectFate::Done | EffectFate::Hangs | EffectFate::NoRoom => self.world.carry_out(&self.about, &task),
            };
            if let Some(calls) = self.world.lock().in_transit.get_mut(&key) {
                *calls -= 1;
            }
            self.world.note(format!("{key} arrives from worker {worker}"));
            sleep(back).await;
            if fate != EffectFate::Hangs {
                // The worker may be gone.
                let _ = reply.send(report);
            } else {
                pending::<()>().await;
            }
        });
        answer.await.unwrap_or_else(|_| unknown())
    }

    fn tariff(&self) -> Option<Tariff> {
        None
    }

    fn sandbox(&self) -> Option<SandboxId> {
        None
    }

    async fn rest(&self) {}

    async fn end_earlier(&self) {}

    fn may_hold(&self) -> bool {
        true
    }

    async fn end(&self, _: Over) -> bool {
        let (world, run, worker) = (self.world.clone(), self.about.run.clone(), self.worker);
        let (fate, there, back) = world.effect_fate();
        world.note(format!("worker {worker}: ends the sandbox of {run}, {fate:?}"));
        let (reply, answer) = oneshot::channel();
        tokio::spawn(async move {
            sleep(there).await;
            if !matches!(fate, EffectFate::Failed | EffectFate::LostBefore) {
                world.lock().sandboxes.insert(run, false);
            }
            sleep(back).await;
            match fate {
                // The worker may be gone.
                EffectFate::Done | EffectFate::NoRoom => drop(reply.send(true)),
                EffectFate::Failed | EffectFate::LostBefore | EffectFate::LostAfter => drop(reply.send(false)),
                EffectFate::Hangs => pending::<()>().await,
            }
        });
        answer.await.unwrap_or(false)
    }
}
