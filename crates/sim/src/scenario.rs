//! One simulation: runs, workers, users and disturbances, followed by a quiet period until every run has ended.

mod judge;

use std::collections::BTreeMap;
use std::time::Duration;

use saggar_domain::model::ModelAccess;
use saggar_domain::{Labels, ProjectId, RunId, RunState};
use saggar_engine::{ANSWER, Attempt, Body, Budget, Decision, EffectKey, Entry, Event, Input, OpenStep, Run};
use saggar_runtime::runs::{Hub, Instruction, Worker, WorkerSettings};
use saggar_store::{NewLetter, NewRun};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::agents;
use crate::chance::Chance;
use crate::faults::FaultPlan;
use crate::gate::Gate;
use crate::inside::Inside;
use crate::journal::FaultyJournal;
use crate::memory::Memory;
use crate::world::{SimEffects, World};

/// Maximum time for every run to end after the last fault.
const PATIENCE: Duration = Duration::from_secs(15 * 60);
/// How often users look at their runs.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often programs in sandboxes do something.
const CALL_EVERY: Duration = Duration::from_millis(20);
const LEASE: Duration = Duration::from_millis(1000);

#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub runs: usize,
    pub workers: usize,
    pub plan: FaultPlan,
    /// Budget of each run, including its children.
    pub limits: Budget,
    /// Whether runs are sometimes cancelled.
    pub cancels: bool,
    /// Whether runs are sometimes rolled back.
    pub goes_back: bool,
    /// Whether programs in their sandboxes call models.
    pub calls_inside: bool,
}

#[derive(Clone, Debug)]
pub struct ScenarioOutcome {
    /// Events in order.
    pub trace: Vec<String>,
    pub violations: Vec<String>,
    /// Number of store calls.
    pub calls: u64,
    /// How often each effect was done, by names that don't depend on faults.
    pub ledger: BTreeMap<String, u64>,
    /// What each run asked for and got, and how it ended, by such a name.
    pub ends: BTreeMap<String, Vec<String>>,
    /// Number of summaries that were written.
    pub summaries: usize,
    /// Number of child runs.
    pub children: usize,
    /// How often a worker took over a run with several open steps.
    pub taken_over_amid_several: usize,
    /// Number of snapshots, of sandboxes that were lost, and of rollbacks.
    pub snapshots: usize,
    pub losses: u64,
    pub rollbacks: usize,
    /// Number of calls in sandboxes that began, and that were refused.
    pub calls_inside: u64,
    pub calls_refused: u64,
    /// How often a run waited for such calls.
    pub waited_for_calls: usize,
}

struct Life {
    task: JoinHandle<()>,
    gate: Gate,
    /// Kept so that no simulated worker is told to stop.
    _stop: watch::Sender<bool>,
}

struct Simulation {
    scenario: Scenario,
    memory: Memory,
    world: World,
    project: ProjectId,
    workers: Vec<Option<Life>>,
    /// Acknowledged signals.
    told: Vec<(RunId, String)>,
    letters: u64,
    answers: Vec<(RunId, Instruction)>,
    inside: Inside,
}

/// Runs the simulation. The tokio clock must be paused.
pub async fn simulate(scenario: Scenario) -> ScenarioOutcome {
    let memory = Memory::default();
    let world = World::new(scenario.seed, scenario.plan, memory.clone());
    let project = ProjectId::from_random([1; 16]);
    let workers = (0..scenario.workers).map(|_| None).collect();
    let inside = Inside::new(scenario.seed, memory.clone());
    let mut simulation = Simulation {
        scenario,
        memory,
        world,
        project,
        workers,
        told: Vec::new(),
        letters: 0,
        answers: Vec::new(),
        inside,
    };
    simulation.begin();
    simulation.disturb().await;
    simulation.settle().await;
    simulation.judge()
}

impl Simulation {
    fn begin(&mut self) {
        // Ids don't depend on faults, so that keys and results equal those of a simulation without faults.
        let mut chance = Chance::new(self.scenario.seed ^ 0x5eed);
        for index in 0..self.scenario.runs {
            let id = RunId::from_random(chance.bits());
            let name = if index % 2 == 0 { "even" } else { "odd" };
            let agent = agents::agent(name, chance.number(), self.scenario.limits, self.models());
            let (name, now) = (agent.name.clone(), self.world.now());
            let start = Input::Start { run: id.clone(), agent: Box::new(agent), child_of: None };
            let event = Run::new().decide(now, &start).expect("an agent that is one").remove(0);
            let first = Entry::new(1, event).encode();
            let project = self.project.clone();
            self.memory.create(NewRun {
                id,
                project,
                agent: name,
                labels: Labels::default(),
                created_at: now,
                first,
                child_of: None,
            });
        }
        for worker in 0..self.workers.len() {
            self.wake(worker);
        }
    }

    fn models(&self) -> ModelAccess {
        if self.scenario.calls_inside { ModelAccess::All } else { ModelAccess::None }
    }

    /// Opens a worker's gate, or starts a new worker if it was killed.
    fn wake(&mut self, worker: usize) {
        if let Some(life) = &self.workers[worker] {
            life.gate.open();
            return;
        }
        let gate = Gate::default();
        let effects = SimEffects { world: self.world.clone(), gate: gate.clone(), worker };
        let journal = FaultyJournal::new(self.memory.clone(), self.world.clone(), worker);
        let settings = WorkerSettings {
            data_directory: None,
            runs_max: 4,
            per_agent: 4,
            per_project: 6,
            lease: LEASE,
            renew_every: LEASE / 4,
            look_every: Duration::from_millis(50),
            grace: Duration::ZERO,
        };
        let (stop, stopped) = watch::channel(false);
        let driver = Worker::new(journal, effects, Hub::default(), settings);
        let within = gate.clone();
        let task = tokio::spawn(async move { within.within(driver.run(stopped)).await });
        self.world.note(format!("worker {worker} begins"));
        self.workers[worker] = Some(Life { task, gate, _stop: stop });
    }

    fn kill(&mut self, worker: usize) {
        if let Some(life) = self.workers[worker].take() {
            // A stopped process can be killed too.
            life.gate.open();
            life.task.abort();
            self.world.note(format!("worker {worker} is killed"));
        }
    }

    /// Lets time pass. A worker that is killed meanwhile comes back a moment later.
    async fn pass(&mut self, span: Duration) {
        let until = Instant::now() + span;
        let programs = if self.scenario.calls_inside { CALL_EVERY } else { PATIENCE };
        loop {
            let world = self.world.clone();
            tokio::select! {
                biased;
                worker = world.killing() => {
                    self.kill(worker);
                    sleep(Duration::from_millis(10)).await;
                    self.wake(worker);
                }
                () = tokio::time::sleep_until(until) => return,
                () = sleep(programs) => self.inside.turn(),
            }
        }
    }

    async fn disturb(&mut self) {
        for _ in 0..self.scenario.plan.disturbances {
            let span = self.world.chance(|chance| chance.span(self.scenario.plan.disturb_ms));
            self.pass(span).await;
            self.attend();
            let worker = self.world.chance(|chance| chance.below(self.scenario.workers as u64)) as usize;
            let what = self.scenario.plan.disturbed(|| self.world.chance(|chance| chance.below(10)));
            match what {
                0..=2 => self.kill(worker),
                3 | 4 => {
                    if let Some(life) = &self.workers[worker] {
                        life.gate.close();
                        self.world.note(format!("worker {worker} is stopped"));
                    }
                }
                5 | 6 => self.wake(worker),
                7 => {
                    let span = self.world.chance(|chance| chance.span(2 * LEASE.as_millis() as u64));
                    self.world.fail_store(span);
                }
                FaultPlan::CLOCK => {
                    let furthest = self.scenario.plan.clock_ms;
                    let off = self.world.chance(|chance| chance.below(2 * furthest)) as i64 - furthest as i64;
                    self.world.set_clock(off);
                }
                _ => self.speak(),
            }
        }
    }

    /// A client got no response to its answer and repeats it much later, as a different letter.
    fn repeat_an_answer(&mut self) {
        if !self.answers.is_empty() {
            let which = self.world.chance(|chance| chance.below(self.answers.len() as u64)) as usize;
            let (run, answer) = self.answers[which].clone();
            self.send(&run, &answer);
        }
    }

    /// Sends a signal, a pause or a resume to some run.
    fn speak(&mut self) {
        self.repeat_an_answer();
        let ids = self.memory.ids();
        let run = ids[self.world.chance(|chance| chance.below(ids.len() as u64)) as usize].clone();
        let instruction = match self.world.chance(|chance| chance.below(3)) {
            0 => Instruction::Pause,
            1 => Instruction::Resume,
            _ if self.scenario.cancels && self.world.chance(|chance| chance.per_mille(300)) => Instruction::Cancel,
            _ if self.scenario.goes_back && self.world.chance(|chance| chance.per_mille(600)) => {
                let last = self.memory.events(&run, |events| Run::from_events(events)).last_step();
                let step = self.world.chance(|chance| chance.below(last + 1));
                Instruction::RollBack { step, generation: None, message: None }
            }
            _ => Instruction::Signal { name: "note".to_owned(), body: Body::text("by the way"), question: None },
        };
        self.tell(&run, instruction);
    }

    fn tell(&mut self, run: &RunId, instruction: Instruction) {
        if let Some(id) = self.send(run, &instruction)
            && matches!(instruction, Instruction::Signal { .. })
        {
            self.told.push((run.clone(), id));
        }
    }

    /// The letter's id; `None` if the run is over.
    fn send(&mut self, run: &RunId, instruction: &Instruction) -> Option<String> {
        self.letters += 1;
        let id = format!("letter {}", self.letters);
        let body = instruction.encode().expect("it is short");
        let project = self.project.clone();
        let letter = NewLetter { project, run: run.clone(), id: id.clone(), at: self.world.now(), body };
        // One in three letters is sent twice, as by a client that got no response.
        let is_taken = self.memory.put_letter(letter.clone());
        if is_taken && self.world.chance(|chance| chance.per_mille(333)) {
            self.memory.put_letter(letter);
        }
        is_taken.then_some(id)
    }

    /// Users answer questions, and decide about unknown outcomes after they have checked them.
    fn attend(&mut self) {
        for id in self.memory.ids() {
            let Some(row) = self.memory.row(&id) else { continue };
            if !self.memory.letters(&id).is_empty() {
                continue;
            }
            if row.state == RunState::Finished {
                continue;
            }
            // The state names one of the things that a run waits for; its journal has all.
            let run = self.memory.events(&id, |events| Run::from_events(events));
            for question in run.open_questions() {
                let body = Body::text(answer_to(question));
                let answer = Instruction::Signal { name: ANSWER.to_owned(), body, question: Some(question) };
                self.tell(&id, answer.clone());
                self.answers.push((id.clone(), answer));
            }
            for open in run.open_steps() {
                self.decide(&id, &run, open);
            }
        }
    }

    fn decide(&mut self, id: &RunId, run: &Run, open: &OpenStep) {
        if !matches!(open.phase, Attempt::Unknown { .. }) {
            return;
        }
        let key = EffectKey::of(id, run.generation(), open.step);
        let tool = open.effect.call().map(|call| call.tool.clone());
        let decision = match (self.world.was_done(key.as_str()), tool) {
            (None, _) => return,
            (Some(true), Some(tool)) => {
                let hash_or_text = agents::result(&tool, key.as_str());
                Decision::Done(self.shelved(hash_or_text))
            }
            (Some(true), None) | (Some(false), _) => Decision::Retry,
        };
        self.world.note(format!("a person decides about {}", key.as_str()));
        self.tell(id, Instruction::Decide { step: open.step, attempt: Some(open.attempt), decision });
    }

    /// Stores a long text as the runtime's handle does before it accepts a letter.
    fn shelved(&self, text: String) -> Body {
        let length = text.len() as u64;
        match Body::text(text) {
            body if !body.is_too_long() => body,
            body => {
                let hash = self.memory.put_blob(body.as_text().unwrap_or_default().as_bytes());
                Body::Blob { hash: hash.to_hex(), length }
            }
        }
    }

    /// The quiet period: every run must end.
    async fn settle(&mut self) {
        self.world.heal();
        self.inside.begins_more = false;
        let until = Instant::now() + PATIENCE;
        let mut resumed = Vec::new();
        while self.memory.ids().iter().any(|id| !self.is_let_go(id)) {
            if Instant::now() > until {
                let stuck: Vec<_> = self.memory.ids().into_iter().filter(|id| !self.is_let_go(id)).collect();
                for id in stuck {
                    let row = self.memory.row(&id);
                    self.world.violation(format!("{id} does not come to its end: {row:?}"));
                }
                return;
            }
            for worker in 0..self.workers.len() {
                self.wake(worker);
            }
            for id in self.memory.ids() {
                let is_paused = self.memory.events(&id, |events| {
                    let told =
                        events.iter().rev().find(|event| matches!(event, Event::Paused { .. } | Event::Resumed { .. }));
                    matches!(told, Some(Event::Paused { .. }))
                });
                if is_paused
                    && !self.is_over(&id)
                    && self.memory.letters(&id).is_empty()
                    && !resumed.contains(&(id.clone(), self.letters))
                {
                    self.tell(&id, Instruction::Resume);
                    resumed.push((id, self.letters));
                }
            }
            self.attend();
            self.pass(LOOK_EVERY).await;
        }
    }

    fn is_over(&self, id: &RunId) -> bool {
        self.memory.row(id).is_some_and(|row| row.state == RunState::Finished)
    }

    /// Whether the run is over and released, so that no worker looks at it again.
    fn is_let_go(&self, id: &RunId) -> bool {
        self.is_over(id) && self.memory.row(id).is_some_and(|row| row.wake_at.is_none() && row.holder.is_none())
    }
}

/// What people answer to a question.
pub(crate) fn answer_to(step: u64) -> String {
    format!("the answer to step {step}")
}
