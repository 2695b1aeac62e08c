//! The open step: what a run is about to do, does, or doesn't know whether it did.

use saggar_domain::Timestamp;

use crate::effect::{Class, Effect};

/// A step that has begun and is not settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenStep {
    pub step: u64,
    pub attempt: u32,
    pub effect: Effect,
    /// What a crash means.
    pub class: Class,
    /// Where it stands.
    pub phase: Attempt,
    /// When this attempt was intended.
    pub since: Timestamp,
    /// How many of its attempts ended with their worker.
    pub deaths: u32,
    /// Since when it has waited for room, where it had to. Kept until it is settled: it is its place in the queue.
    pub delayed_since: Option<Timestamp>,
}

impl OpenStep {
    /// Whether a worker does it, or may.
    pub(super) fn is_being_done(&self) -> bool {
        let is_executed = match &self.effect {
            Effect::CallModel { .. } | Effect::CallTool { .. } => true,
            Effect::Wait { .. } | Effect::AskHuman { .. } | Effect::Delegate { .. } => false,
        };
        is_executed && self.phase == Attempt::Doing
    }

    /// Whether it may have been done, and must not be done again without a person's word.
    pub(super) fn is_undecided(&self) -> bool {
        match &self.phase {
            Attempt::Unknown { .. } => true,
            // It failed, or has not begun: it certainly did nothing.
            Attempt::Backoff { .. } | Attempt::Delayed { .. } => false,
            Attempt::Doing | Attempt::Probing | Attempt::Interrupted => self.class == Class::Once,
        }
    }
}

/// Where an open step stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It is being done, or may be.
    Doing,
    /// Whoever did it is being asked.
    Probing,
    /// It failed, and is tried again.
    Backoff { until: Timestamp },
    /// It is to be done again when the run is resumed.
    Interrupted,
    /// It has not begun, because there is no room for what it needs.
    Delayed {
        /// When it is tried again at the latest.
        until: Timestamp,
    },
    /// Nobody knows, and a person decides.
    Unknown {
        /// Why nobody knows.
        reason: String,
    },
}
