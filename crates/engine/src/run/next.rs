//! Plans the next step when none is open: the next requested tool call, or else the model.
//!
//! It copies the few numbers that it changes and never the conversation, so a step costs the same at any length of
//! the conversation.

use std::collections::VecDeque;

use saggar_domain::{RunId, Timestamp};

use super::{Born, Run};
use crate::agent::AgentSpec;
use crate::body::Body;
use crate::budget::{Budget, BudgetName, Ledger, Spending};
use crate::built_in::BuiltIn;
use crate::child::DEPTH_MAX;
use crate::effect::{Class, Effect, ToolCall, ToolResult, Usage};
use crate::event::{Event, RunOutcome, Settled};
use crate::key::EffectKey;
use crate::repeats::Repeats;
use crate::rules::Rules;

/// Bytes of conversation per token, for estimating a reservation.
const BYTES_PER_TOKEN: u64 = 4;
/// Plans the events that follow a settled step.
pub(super) struct Planner<'a> {
    born: &'a Born,
    agent: &'a AgentSpec,
    now: Timestamp,
    rules: Rules,
    ledger: Ledger,
    dearest: u64,
    repeats: Repeats,
    last_step: u64,
    messages: u64,
    conversation_bytes: u64,
    calls: VecDeque<&'a ToolCall>,
    // Only the first rules keep answers for later questions.
    answers: VecDeque<&'a Body>,
    events: Vec<Event>,
}

impl<'a> Planner<'a> {
    /// Starts from a run without an open step.
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
            repeats: run.repeats.clone(),
            last_step: run.last_step,
            messages: run.conversation.len() as u64,
            conversation_bytes: run.conversation_bytes,
            calls: run.calls.iter().collect(),
            answers,
            events: Vec::new(),
        }
    }

    /// Assumes that the open step has been settled at this cost, which adds one message.
    pub(super) fn after_settling(mut self, cost: Spending) -> Self {
        self.ledger.settle(cost);
        self.messages += 1;
        self
    }

    /// Assumes that a model call has cost this.
    pub(super) fn after_paying(mut self, micros: u64) -> Self {
        self.dearest = self.dearest.max(micros);
        self
    }

    /// Assumes that the model has requested these calls.
    pub(super) fn with_calls(mut self, calls: &'a [ToolCall]) -> Self {
        self.calls = calls.iter().collect();
        self
    }

    /// Assumes that the oldest kept answer has been used.
    pub(super) fn without_answer(mut self) -> Self {
        self.answers.pop_front();
        self
    }

    /// The events up to the next effect that takes time.
    pub(super) fn plan(mut self) -> Vec<Event> {
        if is_late(self.agent, self.born.started_at, self.now) {
            return self.finish(RunOutcome::BudgetExceeded { budget: BudgetName::WallMs });
        }
        while let Some(call) = self.calls.pop_front() {
            let times = self.repeats.with(call);
            if times > self.agent.repeats_max {
                return self.finish(RunOutcome::Loop { tool: call.tool.clone(), times });
            }
            self.repeats.note(call);
            let mut reserved = Spending { steps: 1, tool_calls: 1, ..Spending::default() };
            if let Some(budget) = self.ledger.refuses(reserved) {
                return self.finish(RunOutcome::BudgetExceeded { budget });
            }
            match self.effect(call) {
                Ok((mut effect, class)) => {
                    if let Effect::Delegate { budget, .. } = &mut effect {
                        reserved.children = 1;
                        if let Some(budget) = self.ledger.refuses(reserved) {
                            return self.finish(RunOutcome::BudgetExceeded { budget });
                        }
                        *budget = budget.within(self.left_after(reserved));
                        reserved = reserved.plus(budget.whole());
                    }
                    let answer = match &effect {
                        Effect::AskHuman { .. } => self.answers.pop_front(),
                        Effect::CallModel { .. }
                        | Effect::CallTool { .. }
                        | Effect::Wait { .. }
                        | Effect::Delegate { .. } => None,
                    };
                    self.intend(effect, class, reserved);
                    let Some(answer) = answer else { return self.events };
                    self.settle_at_once(ToolResult::new(answer.clone(), false));
                }
                Err(complaint) => {
                    self.intend(Effect::CallTool { call: call.clone() }, Class::Pure, reserved);
                    self.settle_at_once(ToolResult::new(Body::text(complaint), true));
                }
            }
        }
        let tokens = self.agent.model.reply_tokens_max.saturating_add(self.conversation_bytes / BYTES_PER_TOKEN);
        let reserved = Spending { steps: 1, tokens, micros: self.micros_for_a_reply(), ..Spending::default() };
        if let Some(budget) = self.ledger.refuses(reserved) {
            return self.finish(RunOutcome::BudgetExceeded { budget });
        }
        self.intend(Effect::CallModel { messages: self.messages }, Class::Model, reserved);
        self.events
    }

    /// The money to reserve for a model call, if there is a limit: the maximum from the agent's spec, or the highest
    /// cost so far. Without a spec, the cost of the first call is unknown, so it only requires that something is
    /// left.
    fn micros_for_a_reply(&self) -> u64 {
        let is_limited = self.ledger.limit().micros.is_some() && self.rules.reserve_money();
        let most = self.agent.model.reply_micros_max.unwrap_or(1).max(self.dearest).max(1);
        if is_limited { most } else { 0 }
    }

    /// The effect of a call, or the message that the model gets instead.
    fn effect(&self, call: &ToolCall) -> Result<(Effect, Class), String> {
        let Some(tool) = self.agent.tools.get(&call.tool) else {
            return Err(format!("there is no tool {:?}", call.tool));
        };
        if let Some(complaint) = &call.invalid {
            return Err(complaint.clone());
        }
        let Some(asked) = BuiltIn::of(call) else {
            return Ok((Effect::CallTool { call: call.clone() }, tool.class));
        };
        match asked? {
            BuiltIn::Wait { seconds } => {
                let until = self.now.after(std::time::Duration::from_secs(seconds));
                Ok((Effect::Wait { call: call.clone(), until }, Class::Pure))
            }
            BuiltIn::AskHuman { question } => Ok((Effect::AskHuman { call: call.clone(), question }, Class::Pure)),
            BuiltIn::Delegate { task, agent } => Ok((self.delegate(call, task, agent)?, Class::Keyed)),
        }
    }

    /// The child that a call requests, with its agent's own budget. The budget is cut to what is left later.
    fn delegate(&self, call: &ToolCall, task: Body, agent: Option<String>) -> Result<Effect, String> {
        let budget = match &agent {
            None => self.agent.budget,
            Some(name) => {
                let agent = self.agent.agents.get(name).ok_or_else(|| format!("there is no agent {name:?}"))?;
                agent.budget
            }
        };
        if self.born.depth >= DEPTH_MAX {
            return Err(format!("a run {DEPTH_MAX} below the first starts none: do it yourself"));
        }
        let key = EffectKey::of(&self.born.id, self.born.generation, self.last_step + 1);
        let child = RunId::from_random(key.bits());
        Ok(Effect::Delegate { call: call.clone(), child, agent, task, budget })
    }

    /// The maximum budget of a child.
    fn left_after(&self, reserved: Spending) -> Budget {
        let mut ledger = self.ledger;
        ledger.reserve(reserved);
        let wall_ms = self.agent.budget.wall_ms.map(|limit| {
            let passed = self.now.as_millis().saturating_sub(self.born.started_at.as_millis());
            limit.saturating_sub(passed)
        });
        Budget { wall_ms, ..ledger.left() }
    }

    fn intend(&mut self, effect: Effect, class: Class, reserved: Spending) {
        self.last_step += 1;
        self.ledger.reserve(reserved);
        let (step, at) = (self.last_step, self.now);
        self.events.push(Event::StepIntended { step, attempt: 1, effect, class, reserved, at });
    }

    fn settle_at_once(&mut self, result: ToolResult) {
        self.ledger.settle(Spending { steps: 1, tool_calls: 1, ..Spending::default() });
        self.messages += 1;
        self.events.push(Event::StepSettled {
            step: self.last_step,
            result: Settled::Returned(result),
            usage: Usage::default(),
            snapshot: None,
            at: self.now,
        });
    }

    fn finish(mut self, outcome: RunOutcome) -> Vec<Event> {
        self.events.push(Event::RunFinished { outcome, at: self.now });
        self.events
    }
}

/// Whether a run has exceeded its wall-clock time.
pub(super) fn is_late(agent: &AgentSpec, started_at: Timestamp, now: Timestamp) -> bool {
    let limit = agent.budget.wall_ms.map(std::time::Duration::from_millis);
    limit.is_some_and(|limit| now >= started_at.after(limit))
}
