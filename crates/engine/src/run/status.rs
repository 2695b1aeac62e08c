//! What a run is doing, in a word. With several open steps it is what matters most to a person: first what needs one,
//! then what is being done, then what it waits for.

use std::time::Duration;

use saggar_domain::{RunId, Timestamp};

use super::{Attempt, OpenStep, Run};
use crate::budget::BudgetName;
use crate::effect::Effect;
use crate::fallback::Unanswered;

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
    /// Waiting for a human's answer. Other steps may be in progress.
    Asking,
    /// Waiting for a human's decision about a step whose outcome is unknown. Other steps may be in progress.
    Parked {
        step: u64,
    },
    /// What comes next exceeds this budget: waiting until a person raises it.
    OutOfBudget {
        budget: BudgetName,
    },
    /// Paused, with nothing in progress.
    Paused,
    Finished,
}

impl Run {
    pub fn status(&self) -> RunStatus {
        if self.born.is_none() {
            return RunStatus::Unborn;
        }
        if self.outcome.is_some() {
            return RunStatus::Finished;
        }
        if let Some(short) = self.short.filter(|short| !short.is_closing) {
            return RunStatus::OutOfBudget { budget: short.budget };
        }
        if let Some(open) = self.open.iter().find(|open| matches!(open.phase, Attempt::Unknown { .. })) {
            return RunStatus::Parked { step: open.step };
        }
        if self.open_questions().next().is_some() {
            return RunStatus::Asking;
        }
        if self.pending().next().is_some() || self.waits_for_sandboxes() {
            return RunStatus::Running;
        }
        if self.open.iter().any(|open| self.is_held_back(open)) {
            return RunStatus::Paused;
        }
        if let Some(until) = self.wakes_at() {
            return RunStatus::Waiting { until };
        }
        match self.children().next() {
            Some(child) => RunStatus::Delegating { child: child.clone() },
            None if self.is_paused => RunStatus::Paused,
            None => RunStatus::Queued,
        }
    }

    /// Whether it goes on with a tick: what comes next did not fit the budget, beside calls of models by programs in its
    /// sandboxes. Those may leave enough when they have ended.
    pub fn waits_for_sandboxes(&self) -> bool {
        self.is_between_steps() && !self.sandbox_calls.under_way.is_zero()
    }

    /// Whether nothing is open in a run that a worker has claimed, and nothing holds it back.
    pub(super) fn is_between_steps(&self) -> bool {
        self.epoch > 0 && self.open.is_empty() && !self.is_paused && self.short.is_none() && self.outcome.is_none()
    }

    /// Whether only a resume lets the step go on.
    fn is_held_back(&self, open: &OpenStep) -> bool {
        match open.phase {
            Attempt::Interrupted => true,
            Attempt::Backoff { .. } | Attempt::Delayed { .. } => self.is_paused,
            Attempt::Doing | Attempt::Probing | Attempt::Unknown { .. } => false,
        }
    }

    /// The numbers of the steps that ask open questions.
    pub fn open_questions(&self) -> impl Iterator<Item = u64> {
        let is_question =
            |open: &&OpenStep| matches!((&open.phase, &open.effect), (Attempt::Doing, Effect::AskHuman { .. }));
        self.open.iter().filter(is_question).map(|open| open.step)
    }

    /// The first step that waits for a signal of that name.
    pub(super) fn waits_for(&self, name: &str) -> Option<u64> {
        let is_awaited = |open: &&OpenStep| {
            matches!(&open.effect, Effect::Wait { signal: Some(signal), .. } if signal == name)
                && open.phase == Attempt::Doing
        };
        self.open.iter().find(is_awaited).map(|open| open.step)
    }

    /// When the first of its open steps goes on by itself; `None` if none does.
    pub fn wakes_at(&self) -> Option<Timestamp> {
        let times = self.open.iter().filter_map(|open| match (&open.phase, &open.effect) {
            // A paused run isn't retried, even after the retry time.
            (Attempt::Backoff { .. } | Attempt::Delayed { .. }, _) if self.is_paused => None,
            (Attempt::Backoff { until } | Attempt::Delayed { until }, _)
            | (Attempt::Doing, Effect::Wait { until, .. }) => Some(*until),
            (Attempt::Doing, Effect::AskHuman { .. }) if !self.is_paused => {
                self.unanswered_at(open).map(|(until, _)| until)
            }
            (Attempt::Doing | Attempt::Probing | Attempt::Interrupted | Attempt::Unknown { .. }, _) => None,
        });
        times.min()
    }

    /// When a question goes on without an answer, and how; `None` if it waits for one without end.
    pub(super) fn unanswered_at(&self, open: &OpenStep) -> Option<(Timestamp, &Unanswered)> {
        let rule = self.born.as_ref()?.agent.on.unanswered.as_ref()?;
        Some((open.since.after(Duration::from_millis(rule.after_ms)), rule))
    }
}
