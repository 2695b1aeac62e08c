//! The state of a run, and how events change it.
//!
//! ```text
//!                    ┌──── Backoff ◀── StepFailed ◀── attempt failed, another is allowed
//!                    │ retry_at         │
//!                    ├──── Delayed ◀── StepDelayed ◀── not begun: the capacity it needs is missing
//!                    │ until            │
//!                    ▼                  │
//!   (no step) ── StepIntended ──▶ Doing ┴──▶ StepSettled ──▶ (no step) or the next StepIntended, in the same commit
//!                    ▲              │ the worker was lost
//!                    │              ├─ pure, model, keyed ──▶ StepIntended, next attempt; in a paused run
//!                    │              │                         StepInterrupted ──▶ Interrupted until it is resumed
//!                    │              ├─ probeable ──▶ StepProbed ──▶ Probing ──▶ settled, never done, or unknown
//!                    │              └─ once ──▶ StepUnknown ──▶ parked until StepDecided
//!                    └───────────────────────────────────────────── retry
//! ```
//! INVARIANT: at most one step is open, and nothing is open in a run that has finished.

mod decide;
mod next;
mod open;
mod pending;
mod settle;

use std::collections::{BTreeSet, VecDeque};

use saggar_domain::{RunId, Timestamp};

use crate::agent::AgentSpec;
use crate::body::Body;
use crate::budget::{Ledger, Spending};
use crate::child::ChildOf;
use crate::effect::{Class, Effect, ModelReply, ToolCall, ToolResult, Usage};
use crate::event::{Event, RunOutcome, Settled};
use crate::repeats::Repeats;
use crate::rules::Rules;

pub use open::{Attempt, OpenStep};
pub use pending::{Pending, Work};

/// The name of signals that answer a question.
pub const ANSWER: &str = "answer";
/// Maximum number of unread signals.
pub(crate) const SIGNALS_MAX: usize = 256;
/// Number of past answers kept, so that a duplicate is harmless and a different answer is rejected.
const ANSWERED_MAX: usize = 64;
/// Number of signal ids kept for deduplication.
const SIGNAL_IDS_MAX: usize = 1024;

/// The state of a run: the fold of its events.
#[derive(Clone, Debug, Default)]
pub struct Run {
    born: Option<Born>,
    epoch: u64,
    rules: Rules,
    conversation: Vec<Message>,
    conversation_bytes: u64,
    replies: u64,
    // Calls of the model's last reply that have not been made yet.
    calls: VecDeque<ToolCall>,
    open: Option<OpenStep>,
    last_step: u64,
    ledger: Ledger,
    // The highest cost of a model call so far.
    dearest: u64,
    repeats: Repeats,
    // Answers that named no question. Only the first rules use them, for the next question.
    answers: VecDeque<Body>,
    answered: VecDeque<(u64, Body)>,
    signal_ids: VecDeque<String>,
    known_signals: BTreeSet<String>,
    is_paused: bool,
    outcome: Option<RunOutcome>,
}

#[derive(Clone, Debug)]
struct Born {
    id: RunId,
    agent: Box<AgentSpec>,
    generation: u32,
    started_at: Timestamp,
    is_logical_only: bool,
    child_of: Option<ChildOf>,
    // Number of runs above it. A fork keeps the number but has no parent waiting for it.
    depth: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The system prompt.
    System(Body),
    User(Body),
    /// The model's reply with its tool calls.
    Assistant(ModelReply),
    /// A tool's result.
    Tool {
        /// The model's id for the call.
        call: String,
        result: ToolResult,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunStatus {
    /// Not started yet.
    Unborn,
    /// Started, but never claimed.
    Queued,
    /// An effect is in progress.
    Running,
    /// Waiting for a time: a timer of its own, or the next retry.
    Waiting {
        until: Timestamp,
    },
    /// Waiting for the end of a child run.
    Delegating {
        child: RunId,
    },
    /// Waiting for a human's answer.
    Asking,
    /// Waiting for a human's decision about a step whose outcome is unknown.
    Parked {
        step: u64,
    },
    /// Paused, with nothing in progress.
    Paused,
    Finished,
}

impl Run {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn from_events<'a>(events: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut run = Self::new();
        for event in events {
            run.apply(event);
        }
        run
    }

    /// `None` before its start.
    pub fn id(&self) -> Option<&RunId> {
        self.born.as_ref().map(|born| &born.id)
    }

    pub fn agent(&self) -> Option<&AgentSpec> {
        self.born.as_ref().map(|born| &*born.agent)
    }

    /// The branch of its tree.
    pub fn generation(&self) -> u32 {
        self.born.as_ref().map_or(0, |born| born.generation)
    }

    /// Whether its files were not restored when it was forked.
    pub fn is_logical_only(&self) -> bool {
        self.born.as_ref().is_some_and(|born| born.is_logical_only)
    }

    /// Number of runs above it.
    pub fn depth(&self) -> u32 {
        self.born.as_ref().map_or(0, |born| born.depth)
    }

    /// The parent, which waits for its end.
    pub fn child_of(&self) -> Option<&ChildOf> {
        self.born.as_ref().and_then(|born| born.child_of.as_ref())
    }

    /// The epoch of the current lease.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn conversation(&self) -> &[Message] {
        &self.conversation
    }

    /// Number of model replies.
    pub fn replies(&self) -> u64 {
        self.replies
    }

    pub fn open_step(&self) -> Option<&OpenStep> {
        self.open.as_ref()
    }

    /// The number of the step that asks the open question.
    pub fn open_question(&self) -> Option<u64> {
        let open = self.open.as_ref()?;
        matches!((&open.phase, &open.effect), (Attempt::Doing, Effect::AskHuman { .. })).then_some(open.step)
    }

    pub fn last_step(&self) -> u64 {
        self.last_step
    }

    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The highest cost of a model call so far, in millionths.
    pub fn dearest(&self) -> u64 {
        self.dearest
    }

    /// `None` while it isn't finished.
    pub fn outcome(&self) -> Option<&RunOutcome> {
        self.outcome.as_ref()
    }

    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub fn status(&self) -> RunStatus {
        if self.born.is_none() {
            return RunStatus::Unborn;
        }
        if self.outcome.is_some() {
            return RunStatus::Finished;
        }
        let Some(open) = &self.open else {
            return if self.is_paused { RunStatus::Paused } else { RunStatus::Queued };
        };
        match (&open.phase, &open.effect) {
            (Attempt::Unknown { .. }, _) => RunStatus::Parked { step: open.step },
            (Attempt::Interrupted, _) => RunStatus::Paused,
            (Attempt::Backoff { .. } | Attempt::Delayed { .. }, _) if self.is_paused => RunStatus::Paused,
            (Attempt::Backoff { until } | Attempt::Delayed { until }, _) => RunStatus::Waiting { until: *until },
            (Attempt::Doing, Effect::Wait { until, .. }) => RunStatus::Waiting { until: *until },
            (Attempt::Doing, Effect::AskHuman { .. }) => RunStatus::Asking,
            (Attempt::Doing, Effect::Delegate { child, .. }) => RunStatus::Delegating { child: child.clone() },
            (Attempt::Doing | Attempt::Probing, _) => RunStatus::Running,
        }
    }

    /// Applies an event. Every event that `decide` returned for this state, and every prefix of a journal, can be
    /// applied. Nothing is validated again here, so that stored journals always stay readable.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::RunStarted { run, agent, child_of, at } => self.start(run, agent, child_of.as_ref(), *at),
            Event::Forked { run, generation, message, is_logical_only, does_again, at, .. } => {
                if let Some(born) = &mut self.born {
                    born.id = run.clone();
                    born.generation = *generation;
                    born.started_at = *at;
                    born.is_logical_only = *is_logical_only;
                    born.child_of = None;
                }
                self.epoch = 0;
                match does_again {
                    true => self.put_back_open(),
                    false => self.drop_open(),
                }
                self.is_paused = false;
                self.ledger.settle(Spending::default());
                if let Some(message) = message {
                    self.say(Message::User(message.clone()));
                }
            }
            Event::Claimed { epoch, rules, .. } => {
                self.epoch = *epoch;
                self.rules = *rules;
                // The worker that was doing this has lost its lease.
                if let Some(open) = self.open.as_mut().filter(|open| open.is_being_done()) {
                    open.deaths = open.deaths.saturating_add(1);
                }
            }
            Event::StepIntended { step, attempt, effect, class, reserved, at } => {
                self.intend(*step, *attempt, effect, *class, *reserved, *at);
            }
            Event::StepSettled { step, result, usage, .. } => self.settle(*step, result, *usage),
            Event::StepFailed { usage, retry_at, .. } => {
                self.dearest = self.dearest.max(usage.micros);
                let reserved = self.ledger.reserved();
                self.ledger.settle(Spending { tokens: usage.tokens, micros: usage.micros, ..Spending::default() });
                self.ledger.reserve(reserved);
                self.set_phase(Attempt::Backoff { until: *retry_at });
            }
            Event::StepDelayed { retry_at, at, .. } => {
                self.set_phase(Attempt::Delayed { until: *retry_at });
                if let Some(open) = &mut self.open {
                    open.delayed_since.get_or_insert(*at);
                }
            }
            Event::StepUnknown { reason, .. } => self.set_phase(Attempt::Unknown { reason: reason.clone() }),
            Event::StepProbed { .. } => self.set_phase(Attempt::Probing),
            Event::StepInterrupted { .. } => self.set_phase(Attempt::Interrupted),
            // The next event has the decision.
            Event::StepDecided { .. } => {}
            Event::SignalReceived { id, name, body, question, .. } => self.hear(id, name, body, *question),
            Event::Paused { .. } => self.is_paused = true,
            Event::Resumed { .. } => self.is_paused = false,
            // The reservation stays, because the parent has to account for it.
            Event::StepAbandoned { .. } => self.drop_open(),
            Event::RunFinished { outcome, .. } => {
                self.open = None;
                self.calls.clear();
                self.outcome = Some(outcome.clone());
            }
        }
    }

    fn start(&mut self, run: &RunId, agent: &AgentSpec, child_of: Option<&ChildOf>, at: Timestamp) {
        self.ledger = Ledger::new(agent.budget);
        if let Some(system) = &agent.system {
            self.say(Message::System(system.clone()));
        }
        self.say(Message::User(agent.task.clone()));
        let agent = Box::new(agent.clone());
        self.born = Some(Born {
            id: run.clone(),
            agent,
            generation: 0,
            started_at: at,
            is_logical_only: false,
            child_of: child_of.cloned(),
            depth: child_of.map_or(0, |child_of| child_of.depth),
        });
    }

    fn intend(&mut self, step: u64, attempt: u32, effect: &Effect, class: Class, reserved: Spending, since: Timestamp) {
        if step > self.last_step {
            self.last_step = step;
            if let Some(call) = effect.call() {
                self.repeats.note(call);
                self.calls.pop_front();
            }
        }
        let same = self.open.as_ref().filter(|open| open.step == step);
        // A step keeps its place in the capacity queue through all of its attempts: one that failed, or whose worker died, has not
        // used its turn.
        let delayed_since = same.and_then(|open| open.delayed_since);
        let deaths = same.map_or(0, |open| open.deaths);
        // An attempt that was waiting for capacity starts only now.
        let is_retry = attempt > 1 && same.is_none_or(|open| open.attempt != attempt);
        self.ledger.settle(Spending { retries: u64::from(is_retry), ..Spending::default() });
        self.ledger.reserve(reserved);
        let (effect, phase) = (effect.clone(), Attempt::Doing);
        self.open = Some(OpenStep { step, attempt, effect, class, phase, since, deaths, delayed_since });
    }

    /// Drops the open step. A child belongs to the run that started it, so a fork starts its own.
    fn drop_open(&mut self) {
        match &self.open {
            Some(OpenStep { effect: Effect::Delegate { .. }, .. }) => self.put_back_open(),
            Some(_) | None => self.open = None,
        }
    }

    /// Makes the call of the open step the next one again.
    fn put_back_open(&mut self) {
        let open = self.open.take();
        if let Some(call) = open.as_ref().and_then(|open| open.effect.call()) {
            self.calls.push_front(call.clone());
            self.repeats.take_back();
        }
    }

    fn settle(&mut self, step: u64, result: &Settled, usage: Usage) {
        let Some(open) = self.open.take_if(|open| open.step == step) else { return };
        self.ledger.settle(open.effect.cost(result, usage));
        self.dearest = self.dearest.max(usage.micros);
        match (result, open.effect.call()) {
            (Settled::Replied(reply), _) => {
                self.calls = reply.calls.iter().cloned().collect();
                self.replies += 1;
                self.say(Message::Assistant(reply.clone()));
            }
            (Settled::Returned(result), Some(call)) => {
                self.say(Message::Tool { call: call.id.clone(), result: result.clone() });
            }
            (Settled::GaveUp(failure), Some(call)) => {
                let content = Body::text(format!("{}: {}", failure.code, failure.message));
                self.say(Message::Tool { call: call.id.clone(), result: ToolResult::new(content, true) });
            }
            (Settled::Ended(end), Some(call)) => {
                self.say(Message::Tool { call: call.id.clone(), result: end.result() });
            }
            // If a model call gave up, the next event ends the run.
            (Settled::Returned(_) | Settled::GaveUp(_) | Settled::Ended(_), None) => {}
        }
        if matches!(open.effect, Effect::AskHuman { .. })
            && let Settled::Returned(result) = result
        {
            // An answer that was kept for its question has been used.
            if self.answers.front() == Some(&result.content) {
                self.answers.pop_front();
            }
            if self.answered.len() == ANSWERED_MAX {
                self.answered.pop_front();
            }
            self.answered.push_back((step, result.content.clone()));
        }
    }

    fn hear(&mut self, id: &str, name: &str, body: &Body, question: Option<u64>) {
        if self.signal_ids.len() == SIGNAL_IDS_MAX
            && let Some(oldest) = self.signal_ids.pop_front()
        {
            self.known_signals.remove(&oldest);
        }
        self.signal_ids.push_back(id.to_owned());
        self.known_signals.insert(id.to_owned());
        match (name, question) {
            // The next event is the step that it settles.
            (ANSWER, Some(_)) => {}
            (ANSWER, None) => self.answers.push_back(body.clone()),
            _ => self.say(Message::User(body.clone())),
        }
    }

    fn say(&mut self, message: Message) {
        self.conversation_bytes = self.conversation_bytes.saturating_add(message.length());
        self.conversation.push(message);
    }

    fn set_phase(&mut self, phase: Attempt) {
        if let Some(open) = &mut self.open {
            open.phase = phase;
        }
    }
}

impl Message {
    fn length(&self) -> u64 {
        let body = |body: &Body| match body {
            Body::Text(text) => text.len() as u64,
            Body::Blob { length, .. } => *length,
        };
        match self {
            Self::System(text) | Self::User(text) => body(text),
            Self::Assistant(reply) => {
                body(&reply.text) + reply.calls.iter().map(|call| body(&call.arguments)).sum::<u64>()
            }
            Self::Tool { result, .. } => body(&result.content),
        }
    }
}

impl Effect {
    /// The tool call that the step comes from.
    pub fn call(&self) -> Option<&ToolCall> {
        match self {
            Self::CallModel { .. } => None,
            Self::CallTool { call }
            | Self::Wait { call, .. }
            | Self::AskHuman { call, .. }
            | Self::Delegate { call, .. } => Some(call),
        }
    }

    /// Its cost, including child runs.
    fn cost(&self, result: &Settled, usage: Usage) -> Spending {
        let own = Spending {
            steps: 1,
            tokens: usage.tokens,
            micros: usage.micros,
            tool_calls: u64::from(self.call().is_some()),
            retries: 0,
            children: u64::from(matches!(self, Self::Delegate { .. })),
        };
        match result {
            Settled::Ended(end) => own.plus(end.spent),
            Settled::Replied(_) | Settled::Returned(_) | Settled::GaveUp(_) => own,
        }
    }
}
