//! Calls of models by programs in a run's sandboxes, as the run's worker sees them.
//!
//! The server that answers them keeps count in the store (`saggar_store::sandbox_call`). The worker reads it before each decision
//! and records it with what it decides, and writes what the run's budget leaves for further calls. An append that sets something
//! aside fails if a call has begun since then and both don't fit: the worker decides again.

use saggar_domain::model::SandboxCalls;
use saggar_engine::{Event, Input, Run};
use saggar_store::{KnownCalls, LeftForSandboxes, RunRow};

use super::drive::Drive;
use super::effects::Effects;
use super::handle::Runs;
use super::journal::Journal;
use crate::fault::Fault;
use crate::permit::{Action, Permit};

/// How often the end of a child is decided again, because a call has begun in its sandboxes. A program that begins one call after
/// the other doesn't keep its run from ending.
const TRIES_MAX: u32 = 16;

impl<J: Journal, E: Effects> Drive<J, E> {
    /// What programs in its sandboxes have asked of models so far; `None` if they may ask nothing.
    pub(super) async fn sandbox_calls(&self, run: &Run) -> Option<Input> {
        if !calls_models_inside(run) {
            return None;
        }
        let calls = self.until_done(|| self.journal.sandbox_calls(self.claimed.run.id.clone())).await;
        Some(Input::SandboxCalled(calls))
    }
}

impl Runs {
    /// What programs in a run's sandboxes have asked of models so far, also after its end.
    pub async fn sandbox_calls(&self, permit: &Permit, row: &RunRow) -> Result<SandboxCalls, Fault> {
        permit.check(|action| matches!(action, Action::ReadRun(_)))?;
        Ok(self.store().sandbox_calls(row.id.clone()).await?)
    }
}

fn calls_models_inside(run: &Run) -> bool {
    run.agent().is_some_and(|agent| !agent.sandbox.models.is_none())
}

pub(super) fn left_for_sandboxes(run: &Run) -> LeftForSandboxes {
    let left = run.left_for_sandboxes();
    LeftForSandboxes { tokens: left.tokens, micros: left.micros }
}

/// The calls that these events allow for, if they go by them: they set tokens or money aside, or tell a parent what was spent.
pub(super) fn known_calls(run: &Run, events: &[Event], tries: u32) -> Option<KnownCalls> {
    if !calls_models_inside(run) {
        return None;
    }
    let amount = run.sandbox_calls().at_most();
    let reserves = |event: &Event| matches!(event, Event::StepIntended { reserved, .. } if reserved.tokens > 0 || reserved.micros > 0);
    let is_end = |event: &Event| matches!(event, Event::RunFinished { .. });
    match run.child_of() {
        Some(_) if events.iter().any(is_end) => (tries < TRIES_MAX).then_some(KnownCalls { amount, may_grow: false }),
        _ => events.iter().any(reserves).then_some(KnownCalls { amount, may_grow: true }),
    }
}
