//! The outcome of an attempt, and the events that follow from it in the same commit.

use saggar_domain::Timestamp;
use saggar_domain::net::NetDecision;

use super::next::Planner;
use super::{Attempt, Born, Message, OpenStep, Run};
use crate::body::Body;
use crate::budget::{BudgetName, Spending};
use crate::effect::{Class, Effect, Usage};
use crate::event::{Event, RunOutcome, Settled};
use crate::fallback::{WhenFailing, WhenOutOfBudget, WhenUncertain};
use crate::flaw::{Flaw, Verdict};
use crate::input::{EffectFailure, Rejected, Report};
use crate::reply::ModelReply;
use crate::retry::RetryPolicy;

/// A step that waits for capacity is retried after this time, even without a notification.
const DELAY_MAX: std::time::Duration = std::time::Duration::from_secs(30);

/// An attempt whose outcome can't be determined.
struct Lost<'a> {
    reason: &'a str,
    network: &'a [NetDecision],
    is_probing: bool,
}

impl Run {
    pub(super) fn decide_report(
        &self,
        now: Timestamp,
        born: &Born,
        open: &OpenStep,
        report: &Report,
        chance: u64,
    ) -> Result<Vec<Event>, Rejected> {
        let is_probing = match (&open.phase, &open.effect) {
            (Attempt::Doing, Effect::Wait { .. } | Effect::AskHuman { .. } | Effect::Delegate { .. }) => {
                return Err(Rejected::NotAwaited);
            }
            (Attempt::Doing, _) => false,
            (Attempt::Probing, _) => true,
            (Attempt::Backoff { .. } | Attempt::Delayed { .. } | Attempt::Interrupted | Attempt::Unknown { .. }, _) => {
                return Err(Rejected::NotAwaited);
            }
        };
        let is_model = open.effect.is_of_model();
        let is_snapshot = matches!(open.effect, Effect::TakeSnapshot);
        match report {
            Report::Replied { reply, usage } if is_model => {
                Ok(self.settle_and_go_on(now, born, open, Settled::Replied(reply.clone()), *usage, None))
            }
            Report::Returned { result, snapshot } if !is_model && !is_snapshot => {
                let settled = Settled::Returned(result.clone());
                Ok(self.settle_and_go_on(now, born, open, settled, Usage::default(), snapshot.clone()))
            }
            Report::Kept { snapshot } if is_snapshot => {
                let snapshot = snapshot.as_ref().map(ToString::to_string);
                Ok(self.settle_and_go_on(now, born, open, Settled::Kept, Usage::default(), snapshot))
            }
            Report::Replied { .. } | Report::Returned { .. } | Report::Kept { .. } => Err(Rejected::NotAwaited),
            Report::Failed { failure, usage } => Ok(self.fail(now, born, open, failure, *usage, chance)),
            Report::Delayed { .. } if is_model || is_snapshot || is_probing => Err(Rejected::NotAwaited),
            Report::Delayed { reason } => Ok(vec![Event::StepDelayed {
                step: open.step,
                reason: reason.clone(),
                retry_at: now.after(DELAY_MAX),
                at: now,
            }]),
            Report::NeverDone if is_probing => Ok(vec![self.intend_again_or_wait(open, now)]),
            Report::NeverDone => Err(Rejected::NotAwaited),
            Report::Unknown { reason, network } => {
                let lost = Lost { reason, network, is_probing };
                Ok(self.lose(now, born, open, &lost, chance))
            }
        }
    }

    /// An attempt that certainly had no effect: retry it if allowed, otherwise give up.
    fn fail(
        &self,
        now: Timestamp,
        born: &Born,
        open: &OpenStep,
        failure: &EffectFailure,
        usage: Usage,
        chance: u64,
    ) -> Vec<Event> {
        if matches!(open.effect, Effect::TakeSnapshot) {
            // The run goes on without it, and the next one comes by itself.
            return self.settle_and_go_on(now, born, open, Settled::GaveUp(failure.clone()), usage, None);
        }
        let one_more = Spending { retries: 1, ..Spending::default() };
        let wait = policy(born, open).wait_ms(self.tries(open), chance).filter(|_| failure.is_passing);
        if let Some(wait) = wait {
            let wait = wait.max(failure.retry_after_ms.unwrap_or(0));
            let refused = if self.rules.reserve_money() {
                // The next attempt's cost comes in addition to this one's.
                let mut ledger = self.ledger;
                let dearest = self.dearest.max(usage.micros);
                let mut next = open.reserved;
                if next.micros > 0 {
                    next.micros = next.micros.max(dearest);
                }
                if open.effect.is_of_model() && self.tariff.is_some() {
                    next = self.reservation_of_a_call(&open.effect, &born.agent, dearest);
                }
                let next = next.plus(one_more);
                let cost = Spending { tokens: usage.tokens, micros: usage.micros, ..Spending::default() };
                ledger.settle(open.reserved, cost);
                ledger.refuses(next)
            } else {
                self.ledger.refuses(one_more)
            };
            if let Some(budget) = refused {
                return self.fail_out_of(now, born, open, failure, usage, budget);
            }
            return vec![Event::StepFailed {
                step: open.step,
                attempt: open.attempt,
                failure: failure.clone(),
                usage,
                retry_at: now.after(std::time::Duration::from_millis(wait)),
                at: now,
            }];
        }
        if born.agent.on.failing == WhenFailing::Ask {
            let reason = format!("it failed: {}: {}", failure.code, failure.message);
            let (step, attempt, failure) = (open.step, open.attempt, failure.clone());
            return vec![
                // It has the cost.
                Event::StepFailed { step, attempt, failure, usage, retry_at: now, at: now },
                Event::StepUnknown { step, reason, network: Vec::new(), at: now },
            ];
        }
        let settled = Settled::GaveUp(failure.clone());
        match open.effect {
            Effect::CallModel { .. } | Effect::Summarize { .. } => {
                let outcome = self.end_of_last_call(&settled);
                let outcome = outcome.unwrap_or_else(|| RunOutcome::Failed { failure: failure.clone() });
                vec![
                    Event::StepSettled { step: open.step, result: settled, usage, snapshot: None, at: now },
                    Event::RunFinished { outcome, at: now },
                ]
            }
            Effect::CallTool { .. }
            | Effect::Wait { .. }
            | Effect::AskHuman { .. }
            | Effect::Delegate { .. }
            | Effect::TakeSnapshot => self.settle_and_go_on(now, born, open, settled, usage, None),
        }
    }

    /// The budget doesn't allow another attempt.
    fn fail_out_of(
        &self,
        now: Timestamp,
        born: &Born,
        open: &OpenStep,
        failure: &EffectFailure,
        usage: Usage,
        budget: BudgetName,
    ) -> Vec<Event> {
        let (step, attempt) = (open.step, open.attempt);
        if born.agent.on.budget == WhenOutOfBudget::Ask && born.child_of.is_none() {
            let what = budget.as_str();
            let reason = format!(
                "it failed, and the budget of {what} allows no other attempt: {}: {}",
                failure.code, failure.message
            );
            return vec![
                Event::StepFailed { step, attempt, failure: failure.clone(), usage, retry_at: now, at: now },
                Event::StepUnknown { step, reason, network: Vec::new(), at: now },
            ];
        }
        let result = Settled::GaveUp(failure.clone());
        let mut events = vec![Event::StepSettled { step, result: result.clone(), usage, snapshot: None, at: now }];
        let is_last_call_wanted = born.agent.on.budget == WhenOutOfBudget::Finish && !open.effect.is_of_model();
        match self.end_of_last_call(&result) {
            None if is_last_call_wanted && !self.is_paused => {
                events.extend(Planner::new(self, born, now).after_settling(self, open, &result, usage).out_of(budget));
            }
            end => {
                let outcome = end.unwrap_or(RunOutcome::BudgetExceeded { budget, answer: None });
                events.extend(self.finish_without(Some(step), now, outcome));
            }
        }
        events
    }

    /// What makes a reply useless, by the rules of the run.
    pub(super) fn flaw_of(&self, asked: &Effect, reply: &ModelReply) -> Option<Flaw> {
        let agent = self.agent().filter(|_| self.rules.correct_replies())?;
        match asked {
            Effect::Summarize { .. } => Flaw::of_summary(reply),
            _ => Flaw::of(reply, agent),
        }
    }

    /// The number of this attempt as a tool's `attempts_max` counts it.
    pub(crate) fn tries(&self, open: &OpenStep) -> u32 {
        match self.rules.count_deaths_apart() {
            true => open.attempt.saturating_sub(open.deaths).max(1),
            false => open.attempt,
        }
    }

    /// The outcome can't be determined.
    fn lose(&self, now: Timestamp, born: &Born, open: &OpenStep, lost: &Lost<'_>, chance: u64) -> Vec<Event> {
        let (step, network) = (open.step, lost.network.to_vec());
        match open.class {
            Class::Pure | Class::Model | Class::Keyed => {
                let failure = EffectFailure { network, ..EffectFailure::new("outcome_unknown", lost.reason, true) };
                self.fail(now, born, open, &failure, Usage::default(), chance)
            }
            Class::Probeable if !lost.is_probing => vec![Event::StepProbed { step, network, at: now }],
            // The agent's author accepts that it may be done twice.
            Class::Probeable if born.agent.on.uncertain == WhenUncertain::Retry => {
                let failure = EffectFailure { network, ..EffectFailure::new("outcome_unknown", lost.reason, true) };
                self.fail(now, born, open, &failure, Usage::default(), chance)
            }
            Class::Probeable | Class::Once => {
                let mut events = vec![Event::StepUnknown { step, reason: lost.reason.to_owned(), network, at: now }];
                if self.abandons(born) {
                    events.extend(self.abandon(step, now));
                }
                events
            }
        }
    }

    /// The outcome of one step and the intent of the next share one commit.
    pub(super) fn settle_and_go_on(
        &self,
        now: Timestamp,
        born: &Born,
        open: &OpenStep,
        result: Settled,
        usage: Usage,
        snapshot: Option<String>,
    ) -> Vec<Event> {
        if let Some(outcome) = self.end_of_last_call(&result) {
            return vec![
                Event::StepSettled { step: open.step, result, usage, snapshot, at: now },
                Event::RunFinished { outcome, at: now },
            ];
        }
        let is_queued_answer = matches!((&open.effect, &result), (Effect::AskHuman { .. }, Settled::Returned(given))
            if self.answers.front() == Some(&given.content));
        let calls = match &result {
            Settled::Replied(reply) => Some(reply.calls.clone()),
            Settled::Returned(_) | Settled::GaveUp(_) | Settled::Ended(_) | Settled::Kept => None,
        };
        let flaw = match &result {
            Settled::Replied(reply) => self.flaw_of(&open.effect, reply),
            Settled::Returned(_) | Settled::GaveUp(_) | Settled::Ended(_) | Settled::Kept => None,
        };
        let is_summary = matches!(open.effect, Effect::Summarize { .. });
        let calls = calls.filter(|_| !is_summary);
        let answer = match &result {
            _ if is_summary => None,
            Settled::Replied(reply) if reply.calls.is_empty() && flaw.is_none() => Some(reply.text.clone()),
            Settled::Replied(_) | Settled::Returned(_) | Settled::GaveUp(_) | Settled::Ended(_) | Settled::Kept => None,
        };
        let mut planner = Planner::new(self, born, now).after_settling(self, open, &result, usage);
        let mut events = vec![Event::StepSettled { step: open.step, result, usage, snapshot, at: now }];
        let is_last = matches!(open.effect, Effect::TakeSnapshot) && !self.conversation.has_more();
        if let (true, Some(answer)) = (is_last, self.final_answer.clone()) {
            events.push(Event::RunFinished { outcome: RunOutcome::Completed { answer }, at: now });
            return events;
        }
        if let Some(flaw) = flaw {
            match flaw.verdict(self.useless, born.agent.corrections_max) {
                // The model has not seen a message that arrived meanwhile.
                Verdict::Fail(_) if self.conversation.has_more() => {}
                Verdict::Fail(failure) => {
                    events.push(Event::RunFinished { outcome: RunOutcome::Failed { failure }, at: now });
                    return events;
                }
                Verdict::Tell(note) => {
                    let note = Body::text(note);
                    planner = planner.told(&Message::User(note.clone()));
                    events.push(Event::Corrected { step: open.step, note, at: now });
                }
                Verdict::GoOn => {}
            }
        }
        let answer = match answer {
            // The model has not seen a message that arrived meanwhile.
            Some(answer) if self.conversation.has_more() => {
                planner = planner.without_last_snapshot();
                Some(answer)
            }
            Some(_) if self.takes_snapshot_at_end() => {
                if !self.is_paused {
                    events.extend(planner.snapshot_when_alone());
                }
                return events;
            }
            Some(answer) => {
                events.push(Event::RunFinished { outcome: RunOutcome::Completed { answer }, at: now });
                return events;
            }
            None => None,
        };
        if self.is_paused {
            return events;
        }
        if is_queued_answer {
            planner = planner.without_answer();
        }
        if let Some(calls) = &calls {
            planner = planner.with_calls(calls);
        }
        let mut planned = planner.plan();
        if let (Some(answer), [Event::RunFinished { outcome, .. }]) = (answer, &mut planned[..]) {
            // It can't afford another call, and it has an answer.
            *outcome = RunOutcome::Completed { answer };
        }
        events.extend(planned);
        events
    }
}

fn policy(born: &Born, open: &OpenStep) -> RetryPolicy {
    match open.effect.call() {
        None => born.agent.model.retry,
        Some(call) => born.agent.tools.get(&call.tool).map(|tool| tool.retry).unwrap_or_default(),
    }
}
