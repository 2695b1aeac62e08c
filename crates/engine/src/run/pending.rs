//! The current work of a run, and the time of its next deadline. Both follow from the state, so a worker that knows
//! only the journal does the same as the one before it.

use std::time::Duration;

use saggar_domain::Timestamp;

use super::{Attempt, OpenStep, Run};
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
    /// Ask the model to sum up the messages before this one.
    Summarize(u64),
    CallTool(&'a ToolCall),
    TakeSnapshot,
    /// Ask the executor whether the effect was done.
    Probe(&'a Effect),
}

impl Run {
    /// The work that must be in progress now: at most one item for each open step.
    pub fn pending(&self) -> impl Iterator<Item = Pending<'_>> {
        let born = self.born.as_ref();
        self.open.iter().filter_map(move |open| {
            let (born, work) = (born?, work(open)?);
            let key = EffectKey::of(&born.id, born.generation, open.step);
            Some(Pending { step: open.step, attempt: open.attempt, key, work })
        })
    }

    /// When a tick would change something; `None` if never.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let born = self.born.as_ref().filter(|_| self.outcome.is_none())?;
        let wall = born.agent.budget.wall_ms.map(|limit| born.started_at.after(Duration::from_millis(limit)));
        [wall, self.wakes_at()].into_iter().flatten().min()
    }
}

fn work(open: &OpenStep) -> Option<Work<'_>> {
    match (&open.phase, &open.effect) {
        (Attempt::Probing, effect) => Some(Work::Probe(effect)),
        (Attempt::Doing, Effect::CallModel { .. }) => Some(Work::CallModel),
        (Attempt::Doing, Effect::Summarize { through }) => Some(Work::Summarize(*through)),
        (Attempt::Doing, Effect::CallTool { call }) => Some(Work::CallTool(call)),
        (Attempt::Doing, Effect::TakeSnapshot) => Some(Work::TakeSnapshot),
        (Attempt::Doing, Effect::Wait { .. } | Effect::AskHuman { .. } | Effect::Delegate { .. })
        | (Attempt::Backoff { .. } | Attempt::Delayed { .. } | Attempt::Interrupted | Attempt::Unknown { .. }, _) => {
            None
        }
    }
}
