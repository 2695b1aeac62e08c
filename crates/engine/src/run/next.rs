//! Plans what starts next: requested tool calls, as many as may be open at once, and when all have their results, the
//! model.
//!
//! Calls start in the model's order, and none overtakes another. One starts beside others if its class and its tool
//! allow it, fewer steps are open than the agent may have, and its whole reservation fits what the others leave. One
//! that must wait for any of these waits until the others have ended, and only then ends the run if it still can't
//! start.
//!
//! It copies the few numbers that it changes and never the conversation, so a step costs the same at any length of
//! the conversation.

mod asked;

use std::collections::VecDeque;

use saggar_domain::Timestamp;
use saggar_domain::model::Tariff;

use super::apply::told;
use super::conversation::Conversation;
use super::kept::Kept;
use super::price::Estimate;
use super::summary::{Older, SUMMARIZE_TOKENS};
use super::{Born, Message, OpenStep, Run};
use crate::agent::{AgentSpec, OPEN_STEPS_MAX};
use crate::body::Body;
use crate::budget::{Budget, BudgetName, Ledger, Spending};
use crate::effect::{Class, Effect, ToolCall, ToolResult, Usage};
use crate::event::{Event, RunOutcome, Settled};
use crate::repeats::{Cycle, Repeats};
use crate::rules::Rules;
use asked::Asked;

/// What `finish` returns.
const FINISHED: &str = "the run is finished";
/// What it returns if a person has said something that the model has not seen.
const NOT_YET: &str = "the run goes on: a message has arrived meanwhile. Read it, and finish again";
/// The result of a call that comes after `finish` in the same reply.
const NOT_MADE: &str = "not done: an earlier call of the same reply has finished the run";

/// Plans the events that follow a settled step.
pub(super) struct Planner<'a> {
    pub(super) born: &'a Born,
    pub(super) agent: &'a AgentSpec,
    pub(super) now: Timestamp,
    pub(super) rules: Rules,
    pub(super) ledger: Ledger,
    dearest: u64,
    tariff: Option<&'a Tariff>,
    repeats: Repeats,
    last_step: u64,
    pub(super) messages: u64,
    conversation_bytes: u64,
    conversation_tokens: u64,
    calls: VecDeque<&'a ToolCall>,
    // Steps that were open before and still are.
    others: Vec<u64>,
    // Number of open steps, those begun here included.
    pub(super) open: u32,
    // Whether a step is open that nothing may be beside.
    is_alone: bool,
    // What the model has been told so far.
    conversation: &'a Conversation,
    // Whether the older turns have just been summed up.
    is_summed_up: bool,
    // Whether nothing new starts, because a budget is used up.
    is_short: bool,
    // Only the first rules keep answers for later questions.
    answers: VecDeque<&'a Body>,
    kept: Kept,
    // A person's messages that wait for the end of the turn.
    later: Vec<&'a Message>,
    // The answer of a run that wanted to finish, and gets a message first.
    answer: Option<Body>,
    // The answer of a run that only takes its last snapshot.
    final_answer: Option<&'a Body>,
    // The step that last tried to take a snapshot, and whether a step since then used the sandbox.
    tried_at: u64,
    pub(super) is_used: bool,
    // Whether the run ends without a last snapshot.
    ends_at_once: bool,
    pub(super) events: Vec<Event>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(run: &'a Run, born: &'a Born, now: Timestamp) -> Self {
        Self::by(run.rules, run, born, now)
    }

    /// The same by other rules: a claim is decided by those of the new worker, not by those of the previous one.
    pub(super) fn by(rules: Rules, run: &'a Run, born: &'a Born, now: Timestamp) -> Self {
        let answers = if rules.answers_name_their_question() { VecDeque::new() } else { run.answers.iter().collect() };
        Self {
            born,
            agent: &born.agent,
            now,
            rules,
            ledger: *run.ledger(),
            dearest: run.dearest,
            tariff: run.tariff.as_deref(),
            repeats: run.repeats.clone(),
            last_step: run.last_step,
            messages: run.conversation.length(),
            // The first rules don't count the newest message.
            conversation_bytes: run.conversation.bytes(),
            conversation_tokens: run.conversation.tokens(),
            calls: run.conversation.calls().collect(),
            others: run.open.iter().map(|open| open.step).collect(),
            open: run.open.len() as u32,
            is_alone: run.open.iter().any(|open| !is_parallel(&born.agent, &open.effect, open.class)),
            conversation: &run.conversation,
            is_summed_up: false,
            is_short: run.short.is_some(),
            answers,
            kept: run.kept.clone(),
            later: run.conversation.later().collect(),
            answer: None,
            final_answer: run.final_answer.as_ref(),
            tried_at: run.snapshots.tried_at,
            is_used: run.snapshots.is_used,
            ends_at_once: false,
            events: Vec::new(),
        }
    }

    /// Assumes that a step has been settled with this result, which adds one message.
    pub(super) fn after_settling(mut self, run: &Run, open: &OpenStep, result: &Settled, usage: Usage) -> Self {
        self.ledger.settle(open.reserved, open.effect.cost(result, usage));
        self.others.retain(|step| *step != open.step);
        self.open -= 1;
        let left = run.open.iter().filter(|other| other.step != open.step);
        self.is_alone = left.into_iter().any(|other| !is_parallel(self.agent, &other.effect, other.class));
        if open.effect.is_of_model() {
            self.dearest = self.dearest.max(usage.micros);
        }
        if let (Effect::Summarize { through }, Settled::Replied(reply)) = (&open.effect, result) {
            if run.flaw_of(&open.effect, reply).is_none() {
                self.sum_up(*through, &reply.text);
            }
            return self;
        }
        self.messages += u64::from(!matches!(open.effect, Effect::TakeSnapshot));
        if self.rules.keep_turns_together() {
            let told = match (result, open.effect.call()) {
                (Settled::Replied(reply), _) => Some(Message::Assistant(reply.clone())),
                (result, Some(call)) => {
                    told(call, result).map(|result| Message::Tool { call: call.id.clone(), result })
                }
                (_, None) => None,
            };
            if let Some(message) = told {
                self.count(&message);
            }
        }
        self
    }

    /// Assumes that the model has been told this too.
    pub(super) fn told(mut self, message: &Message) -> Self {
        self.messages += 1;
        self.count(message);
        self
    }

    /// Assumes that the older turns have been summed up.
    fn sum_up(&mut self, through: u64, summary: &Body) {
        let (bytes, tokens, messages) = self.conversation.replaced(through);
        self.conversation_bytes = self.conversation_bytes.saturating_sub(bytes);
        self.conversation_tokens = self.conversation_tokens.saturating_sub(tokens);
        self.messages = (self.messages - messages) + 1;
        self.count(&Message::Summary(summary.clone()));
        self.is_summed_up = true;
    }

    /// The turns that are summed up before the model is called again.
    fn too_old(&self) -> Option<Older> {
        let limit = self.agent.context.filter(|_| !self.is_summed_up)?;
        let fixed = self.tariff.map_or(0, |tariff| tariff.fixed_tokens);
        let is_over = self.conversation_tokens.saturating_add(fixed) > limit.tokens_max;
        if is_over { self.conversation.older(limit, self.conversation_tokens) } else { None }
    }

    pub(super) fn count(&mut self, message: &Message) {
        self.conversation_bytes = self.conversation_bytes.saturating_add(message.length());
        self.conversation_tokens = self.conversation_tokens.saturating_add(message.tokens());
    }

    /// Assumes that the model has requested these calls.
    pub(super) fn with_calls(mut self, calls: &'a [ToolCall]) -> Self {
        self.calls = calls.iter().collect();
        self
    }

    /// Assumes that the budget has been raised.
    pub(super) fn with_more(mut self, more: Budget) -> Self {
        self.ledger.raise(more);
        self.is_short = false;
        self
    }

    /// Assumes that the oldest kept answer has been used.
    pub(super) fn without_answer(mut self) -> Self {
        self.answers.pop_front();
        self
    }

    /// The events up to the effects that take time.
    pub(super) fn plan(mut self) -> Vec<Event> {
        if self.is_short {
            return self.events;
        }
        if is_late(self.agent, self.born.started_at, self.now) {
            return self.finish(RunOutcome::BudgetExceeded { budget: BudgetName::WallMs, answer: None });
        }
        if let (Some(answer), []) = (self.final_answer, &self.later[..]) {
            return self.finish_when_alone(RunOutcome::Completed { answer: answer.clone() });
        }
        while let Some(call) = self.calls.front().copied() {
            let effect = self.effect(call);
            if self.needs_snapshot() || self.needs_snapshot_before(&effect) {
                return self.snapshot_when_alone();
            }
            let has_place = match &effect {
                Ok(Asked::Do(effect, class)) => self.has_place(is_parallel(self.agent, effect, *class)),
                // Every call before it has its result.
                Ok(Asked::Finish(_)) => self.has_place(false),
                // It is answered at once.
                Err(_) => self.has_place(true),
            };
            if !has_place {
                return self.events;
            }
            if let (Ok(Asked::Finish(answer)), []) = (&effect, &self.later[..]) {
                let answer = answer.clone();
                return self.finish_with(call, answer);
            }
            if let Some(Cycle { times, calls }) = self.repeats.exceeds(call, self.agent.repeats_max, self.rules) {
                return self.finish_when_alone(RunOutcome::Loop { tool: call.tool.clone(), times, calls });
            }
            let mut reserved = Spending { steps: 1, tool_calls: 1, ..Spending::default() };
            if let Some(budget) = self.refuses(reserved, 0) {
                return match effect {
                    Ok(Asked::Finish(answer)) => self.finish(RunOutcome::Completed { answer }),
                    Ok(Asked::Do(..)) | Err(_) => self.out_of(budget),
                };
            }
            match effect {
                Ok(Asked::Finish(answer)) => {
                    self.take(call);
                    self.intend(Effect::CallTool { call: call.clone() }, Class::Pure, reserved);
                    self.settle_at_once(reserved, &call.id, ToolResult::new(Body::text(NOT_YET), true));
                    self.answer = Some(answer);
                }
                Ok(Asked::Do(mut effect, class)) => {
                    if let Effect::Delegate { budget, .. } = &mut effect {
                        reserved.children = 1;
                        if let Some(budget) = self.refuses(reserved, 0) {
                            return self.out_of(budget);
                        }
                        *budget = budget.within(self.left_after(reserved));
                        reserved = reserved.plus(budget.whole());
                    }
                    let answer = match &effect {
                        Effect::AskHuman { .. } => self.answers.pop_front().cloned(),
                        Effect::Wait { signal: Some(name), .. } => self.take_kept(name),
                        Effect::CallModel { .. }
                        | Effect::Summarize { .. }
                        | Effect::CallTool { .. }
                        | Effect::Wait { signal: None, .. }
                        | Effect::Delegate { .. }
                        | Effect::TakeSnapshot => None,
                    };
                    self.take(call);
                    let is_alone = !is_parallel(self.agent, &effect, class);
                    self.intend(effect, class, reserved);
                    match answer {
                        Some(answer) => self.settle_at_once(reserved, &call.id, ToolResult::new(answer, false)),
                        None => {
                            self.open += 1;
                            self.is_alone |= is_alone;
                        }
                    }
                }
                Err(complaint) => {
                    self.take(call);
                    self.intend(Effect::CallTool { call: call.clone() }, Class::Pure, reserved);
                    self.settle_at_once(reserved, &call.id, ToolResult::new(Body::text(complaint), true));
                }
            }
        }
        // The model gets all results at once.
        if self.open > 0 {
            return self.events;
        }
        if self.needs_snapshot() {
            return self.snapshot_when_alone();
        }
        let older = self.too_old();
        let more = if older.is_some() { SUMMARIZE_TOKENS } else { 0 };
        let reserved = self.reservation(more);
        if let Some(budget) = self.refuses(reserved, self.agent.model.reply_tokens_max) {
            // It can't afford another call, and it may have an answer.
            return match self.answer.take() {
                Some(answer) => self.finish(RunOutcome::Completed { answer }),
                None => self.out_of(budget),
            };
        }
        let effect = match older {
            Some(Older { through }) => Effect::Summarize { through },
            None => Effect::CallModel { messages: self.messages },
        };
        self.intend(effect, Class::Model, reserved);
        self.events
    }

    /// What a call of the model comes to at most, with so many tokens more in its request.
    pub(super) fn reservation(&self, more: u64) -> Spending {
        let estimate = Estimate {
            agent: self.agent,
            tariff: self.tariff,
            rules: self.rules,
            is_limited: self.ledger.limit().micros.is_some(),
            dearest: self.dearest,
            bytes: self.conversation_bytes,
            tokens: self.conversation_tokens.saturating_add(more),
        };
        estimate.reservation()
    }

    /// Whether an effect may start beside what is open.
    fn has_place(&self, is_parallel: bool) -> bool {
        let most = match self.rules.allow_several_steps() {
            true => self.agent.open_max.clamp(1, OPEN_STEPS_MAX),
            false => 1,
        };
        self.open == 0 || (!self.is_alone && self.open < most && is_parallel)
    }

    /// The run has its answer. The calls that come after it in the reply are not made, and their results say so, as
    /// far as the budget allows steps.
    fn finish_with(mut self, call: &ToolCall, answer: Body) -> Vec<Event> {
        let reserved = Spending { steps: 1, tool_calls: 1, ..Spending::default() };
        let results = [(call, FINISHED, false)].into_iter();
        let left: Vec<&ToolCall> = self.calls.iter().skip(1).copied().collect();
        for (call, said, is_error) in results.chain(left.into_iter().map(|call| (call, NOT_MADE, true))) {
            if self.ledger.refuses(reserved).is_some() {
                break;
            }
            self.take(call);
            self.intend(Effect::CallTool { call: call.clone() }, Class::Pure, reserved);
            self.settle_at_once(reserved, &call.id, ToolResult::new(Body::text(said), is_error));
        }
        self.finish(RunOutcome::Completed { answer })
    }

    /// The text of a signal that arrived before the wait for it.
    fn take_kept(&mut self, name: &str) -> Option<Body> {
        let body = self.kept.oldest(name)?.clone();
        self.kept.take(name, &body);
        let is_it = |message: &&Message| matches!(message, Message::User(said) if *said == body);
        if let Some(at) = self.later.iter().position(is_it) {
            // The model gets it as a result, and not as a message too.
            let message = self.later.remove(at);
            self.messages -= 1;
            self.conversation_bytes = self.conversation_bytes.saturating_sub(message.length());
            self.conversation_tokens = self.conversation_tokens.saturating_sub(message.tokens());
        }
        Some(body)
    }

    fn take(&mut self, call: &ToolCall) {
        self.calls.pop_front();
        self.repeats.note(call);
    }

    /// So many steps since the last snapshot that one is due before the next. Intents count, and not results: their
    /// order doesn't depend on how long calls take.
    fn needs_snapshot(&self) -> bool {
        let every = self.agent.snapshots.every;
        self.is_used && every.is_some_and(|every| self.last_step - self.tried_at >= every)
    }

    fn needs_snapshot_before(&self, asked: &Result<Asked, String>) -> bool {
        let rules = &self.agent.snapshots;
        self.is_used
            && match asked {
                Ok(Asked::Do(_, class)) => rules.before.contains(class),
                Ok(Asked::Finish(_)) => rules.at_end && self.later.is_empty(),
                Err(_) => false,
            }
    }

    /// It ends with an answer that a message has overtaken.
    pub(super) fn without_last_snapshot(mut self) -> Self {
        self.ends_at_once = true;
        self
    }

    /// Its files are those between two steps: nothing that is open may change them meanwhile.
    pub(super) fn snapshot_when_alone(mut self) -> Vec<Event> {
        if self.open == 0 {
            self.intend(Effect::TakeSnapshot, Class::Keyed, Spending::default());
        }
        self.events
    }

    pub(super) fn intend(&mut self, effect: Effect, class: Class, reserved: Spending) {
        self.last_step += 1;
        match effect {
            Effect::TakeSnapshot => (self.tried_at, self.is_used) = (self.last_step, false),
            _ => self.is_used |= effect.uses_sandbox(self.agent),
        }
        self.ledger.reserve(reserved);
        let (step, at) = (self.last_step, self.now);
        self.events.push(Event::StepIntended { step, attempt: 1, effect, class, reserved, at });
    }

    fn settle_at_once(&mut self, reserved: Spending, call: &str, result: ToolResult) {
        self.ledger.settle(reserved, Spending { steps: 1, tool_calls: 1, ..Spending::default() });
        self.messages += 1;
        if self.rules.keep_turns_together() {
            self.count(&Message::Tool { call: call.to_owned(), result: result.clone() });
        }
        self.events.push(Event::StepSettled {
            step: self.last_step,
            result: Settled::Returned(result),
            usage: Usage::default(),
            snapshot: None,
            at: self.now,
        });
    }

    /// Steps that are open may come to their end first, and may leave enough.
    fn finish_when_alone(self, outcome: RunOutcome) -> Vec<Event> {
        if self.open > 0 { self.events } else { self.finish(outcome) }
    }

    pub(super) fn finish(mut self, outcome: RunOutcome) -> Vec<Event> {
        let at = self.now;
        // What follows the snapshot is decided again, and comes to the same end.
        let is_late = matches!(outcome, RunOutcome::BudgetExceeded { budget: BudgetName::WallMs, .. });
        let ends_at_once = self.ends_at_once || self.answer.is_some() || is_late;
        if self.agent.snapshots.at_end && self.is_used && self.open == 0 && !ends_at_once {
            return self.snapshot_when_alone();
        }
        self.events.extend(self.others.iter().map(|step| Event::StepAbandoned { step: *step, at }));
        self.events.push(Event::RunFinished { outcome, at: self.now });
        self.events
    }
}

/// Whether others may be open beside it.
fn is_parallel(agent: &AgentSpec, effect: &Effect, class: Class) -> bool {
    let tool = effect.call().and_then(|call| agent.tools.get(&call.tool));
    match class {
        Class::Model | Class::Once => false,
        Class::Pure | Class::Keyed | Class::Probeable => tool.is_some_and(|tool| tool.is_parallel),
    }
}

/// Whether a run has exceeded its wall-clock time.
pub(super) fn is_late(agent: &AgentSpec, started_at: Timestamp, now: Timestamp) -> bool {
    let limit = agent.budget.wall_ms.map(std::time::Duration::from_millis);
    limit.is_some_and(|limit| now >= started_at.after(limit))
}
