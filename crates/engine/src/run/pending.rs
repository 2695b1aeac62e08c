//! The current work of a run, and the time of its next deadline. Both follow from the state, so a worker that knows
//! only the journal does the same as the one before it.

use std::time::Duration;

use saggar_domain::Timestamp;

use super::{Attempt, Run};
use crate::effect::{Effect, ToolCall};
use crate::key::EffectKey;

/// Work that must be in progress now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending<'a> {
    pub step: u64,
    pub attempt: u32,
    pub key: EffectKey,
    pub work: Work<'a>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work<'a> {
    /// Ask the model for the next reply.
    CallModel,
    CallTool(&'a ToolCall),
    /// Ask the executor whether the effect was done.
    Probe(&'a Effect),
}

impl Run {
    /// The work that must be in progress now; at most one item.
    pub fn pending(&self) -> Option<Pending<'_>> {
        let (born, open) = (self.born.as_ref()?, self.open.as_ref()?);
        let work = match (&open.phase, &open.effect) {
            (Attempt::Probing, effect) => Work::Probe(effect),
            (Attempt::Doing, Effect::CallModel { .. }) => Work::CallModel,
            (Attempt::Doing, Effect::CallTool { call }) => Work::CallTool(call),
            (Attempt::Doing, Effect::Wait { .. } | Effect::AskHuman { .. } | Effect::Delegate { .. })
            | (Attempt::Backoff { .. } | Attempt::Delayed { .. } | Attempt::Interrupted | Attempt::Unknown { .. }, _) =>
            {
                return None;
            }
        };
        let key = EffectKey::of(&born.id, born.generation, open.step);
        Some(Pending { step: open.step, attempt: open.attempt, key, work })
    }

    /// When a tick would change something; `None` if never.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let born = self.born.as_ref().filter(|_| self.outcome.is_none())?;
        let wall = born.agent.budget.wall_ms.map(|limit| born.started_at.after(Duration::from_millis(limit)));
        let own = self.open.as_ref().and_then(|open| match (&open.phase, &open.effect) {
            // A paused run isn't retried, even after the retry time.
            (Attempt::Backoff { .. } | Attempt::Delayed { .. }, _) if self.is_paused => None,
            (Attempt::Backoff { until } | Attempt::Delayed { until }, _)
            | (Attempt::Doing, Effect::Wait { until, .. }) => Some(*until),
            (Attempt::Doing | Attempt::Probing | Attempt::Interrupted | Attempt::Unknown { .. }, _) => None,
        });
        [wall, own].into_iter().flatten().min()
    }
}
