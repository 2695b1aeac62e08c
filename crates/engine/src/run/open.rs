//! An open step: intended, in progress, or with an unknown outcome.

use saggar_domain::Timestamp;

use crate::budget::Spending;
use crate::effect::{Class, Effect};

/// A step that has been intended and not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenStep {
    pub step: u64,
    pub attempt: u32,
    pub effect: Effect,
    /// What happens after a crash.
    pub class: Class,
    pub phase: Attempt,
    /// When this attempt was intended.
    pub since: Timestamp,
    /// Number of attempts that ended because their worker died.
    pub deaths: u32,
    /// Since when it has been waiting for capacity. Kept until the step is settled, because it is its place in the
    /// queue.
    pub delayed_since: Option<Timestamp>,
    /// The budget set aside for it.
    pub reserved: Spending,
    /// The place of its call in the model's reply, from 0.
    pub place: u32,
}

impl OpenStep {
    /// Whether a worker may be executing it.
    pub(super) fn is_being_done(&self) -> bool {
        let is_executed = match &self.effect {
            Effect::CallModel { .. } | Effect::Summarize { .. } | Effect::CallTool { .. } | Effect::TakeSnapshot => {
                true
            }
            Effect::Wait { .. } | Effect::AskHuman { .. } | Effect::Delegate { .. } => false,
        };
        is_executed && self.phase == Attempt::Doing
    }

    /// Whether it may have been done, and must not be repeated without a human's decision.
    pub(super) fn is_undecided(&self) -> bool {
        match &self.phase {
            Attempt::Unknown { .. } => true,
            // It failed or has not started, so it certainly had no effect.
            Attempt::Backoff { .. } | Attempt::Delayed { .. } => false,
            Attempt::Doing | Attempt::Probing | Attempt::Interrupted => self.class == Class::Once,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It may be in progress.
    Doing,
    /// The executor is being asked whether it was done.
    Probing,
    /// It failed and will be retried.
    Backoff { until: Timestamp },
    /// It will be redone when the run is resumed.
    Interrupted,
    /// It has not started, because the capacity it needs is missing.
    Delayed {
        /// The latest time of the next try.
        until: Timestamp,
    },
    /// The outcome can't be determined; a human decides.
    Unknown {
        /// Why it can't be determined.
        reason: String,
    },
}
