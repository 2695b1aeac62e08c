//! What happens when a budget doesn't allow what comes next.
//!
//! ```text
//!            ┌─ end ────▶ RunFinished
//!   refused ─┼─ finish ─▶ BudgetReached, StepIntended: one last call of the model, without tools ──▶ RunFinished
//!            └─ ask ────▶ BudgetReached ── a person: BudgetRaised ──▶ it goes on where it was
//! ```
//! The outcome names the budget in each case. For `finish`, what the last call comes to is kept back from everything else;
//! if the results of tools have made the conversation longer than that allows, there is no last call. The time ends a run
//! whatever its agent says.

use saggar_domain::Timestamp;

use super::next::Planner;
use super::{Born, Message, Run};
use crate::body::Body;
use crate::budget::{Budget, BudgetName, Spending};
use crate::effect::{Class, Effect};
use crate::event::{Event, RunOutcome, Settled};
use crate::fallback::WhenOutOfBudget;
use crate::input::Rejected;
use crate::rules::Rules;

/// What the model is told before its last call.
const LAST: &str = "Note from the runtime: your budget is used up, so this is your last reply, and you can't call tools any more. \
    Say what you have done and found, and what is left to do. Calls that have no result were not made.";
/// Tokens that it adds to a request, at most.
const LAST_TOKENS: u64 = 64 + LAST.len() as u64 / 3 + 1;

/// A budget is used up, and the run has not ended yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Short {
    pub(super) budget: BudgetName,
    /// Whether the model is called for the last time. Otherwise the run waits for a person.
    pub(super) is_closing: bool,
}

impl Planner<'_> {
    /// The first budget that doesn't allow this amount and what is kept back. The amount may make the request of the last
    /// call so many tokens longer.
    pub(super) fn refuses(&self, wanted: Spending, longer: u64) -> Option<BudgetName> {
        self.ledger.refuses(wanted.plus(self.kept_back(longer)))
    }

    /// What nothing but the last call may use.
    pub(super) fn kept_back(&self, longer: u64) -> Spending {
        match self.agent.on.budget {
            WhenOutOfBudget::Finish => self.reservation(LAST_TOKENS.saturating_add(longer)),
            WhenOutOfBudget::End | WhenOutOfBudget::Ask => Spending::default(),
        }
    }

    /// The events when a budget doesn't allow what comes next. Steps that are open, and calls of models in its sandboxes, may
    /// come to their end first, and may leave enough.
    pub(super) fn out_of(mut self, budget: BudgetName) -> Vec<Event> {
        if self.open > 0 || self.ledger.may_come_back(budget) {
            return self.events;
        }
        if self.agent.snapshots.at_end && self.is_used {
            return self.snapshot_when_alone();
        }
        let at = self.now;
        match self.agent.on.budget {
            WhenOutOfBudget::Ask if self.born.child_of.is_none() => {
                self.events.push(Event::BudgetReached { budget, note: None, at });
                self.events
            }
            WhenOutOfBudget::Finish if self.ledger.refuses(self.reservation(LAST_TOKENS)).is_none() => {
                let reserved = self.reservation(LAST_TOKENS);
                let note = Body::text(LAST);
                self.messages += 1;
                self.count(&Message::User(note.clone()));
                self.events.push(Event::BudgetReached { budget, note: Some(note), at });
                self.intend(Effect::CallModel { messages: self.messages }, Class::Model, reserved);
                self.events
            }
            WhenOutOfBudget::End | WhenOutOfBudget::Finish | WhenOutOfBudget::Ask => {
                self.finish(RunOutcome::BudgetExceeded { budget, answer: None })
            }
        }
    }
}

impl Run {
    /// What its budget leaves for calls of models by programs in its sandboxes, all of them together. While it waits for
    /// such calls, no other begins: they would keep it from going on.
    pub fn left_for_sandboxes(&self) -> Budget {
        let mut ledger = self.ledger;
        if let Some(born) = self.born.as_ref().filter(|born| born.agent.on.budget == WhenOutOfBudget::Finish) {
            ledger.reserve(Planner::new(self, born, born.started_at).kept_back(0));
        }
        let left = ledger.left_for_sandboxes();
        let none = |limit: Option<u64>| limit.map(|_| 0);
        match self.waits_for_sandboxes() {
            true => Budget { tokens: none(left.tokens), micros: none(left.micros), ..left },
            false => left,
        }
    }

    pub(super) fn decide_raise(
        &self,
        now: Timestamp,
        born: &Born,
        id: &str,
        more: Budget,
    ) -> Result<Vec<Event>, Rejected> {
        if self.known_signals.contains(id) {
            return Ok(Vec::new());
        }
        if born.child_of.is_some() {
            return Err(Rejected::ChildsBudget);
        }
        if self.is_closing() || !self.rules.raise_budgets() {
            return Err(Rejected::NotAwaited);
        }
        let mut events = vec![Event::BudgetRaised { id: id.to_owned(), more, at: now }];
        if !self.is_paused && self.short.is_some() {
            // As it is after the event.
            let mut born = born.clone();
            born.agent.budget = born.agent.budget.raised(more);
            events.extend(Planner::new(self, &born, now).with_more(more).plan());
        }
        Ok(events)
    }

    /// How a run ends whose last call has this result, if that was its last call.
    pub(super) fn end_of_last_call(&self, result: &Settled) -> Option<RunOutcome> {
        let Short { budget, is_closing: true } = self.short? else { return None };
        let answer = match result {
            Settled::Replied(reply) if reply.text.length() > 0 => Some(reply.text.clone()),
            Settled::Replied(_) | Settled::Returned(_) | Settled::GaveUp(_) | Settled::Ended(_) | Settled::Kept => None,
        };
        Some(RunOutcome::BudgetExceeded { budget, answer })
    }
}

impl Rules {
    /// From version 3, a budget can be raised. Before, a run ended when one was used up.
    fn raise_budgets(self) -> bool {
        self.allow_several_steps()
    }
}
