//! The state of a run after an entry, found by reading backwards: the cost doesn't grow with its history.
//!
//! This serves to explain and refuse requests. When a worker reads an accepted request, the engine decides about it.

use saggar_domain::{RunState, Timestamp};
use saggar_engine::{Body, Class, Effect, Entry, Event};
use saggar_store::RunRow;

use super::damage::unreadable;
use super::handle::Runs;
use super::stored_agent::agent_of_entry;
use crate::fault::Fault;
use crate::permit::{Action, Permit};

/// Entries read at once while going backwards.
const WINDOW: u64 = 64;

/// The newest step up to an entry.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub(super) step: u64,
    /// Its newest attempt.
    pub(super) attempt: u32,
    pub(super) effect: Effect,
    pub(super) class: Class,
    /// When that attempt was intended.
    pub(super) since: Timestamp,
    /// The newest event that names it, and the number of that entry.
    pub(super) last: Event,
    pub(super) seq: u64,
}

impl Standing {
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.last, Event::StepSettled { .. } | Event::StepAbandoned { .. })
    }

    /// The question, if it is open.
    pub(super) fn question(&self) -> Option<&Body> {
        match &self.effect {
            Effect::AskHuman { question, .. } if self.is_open() => Some(question),
            Effect::AskHuman { .. }
            | Effect::CallModel { .. }
            | Effect::CallTool { .. }
            | Effect::Wait { .. }
            | Effect::Delegate { .. } => None,
        }
    }

    /// Why the step's outcome is unknown, if it is parked.
    pub(super) fn parked(&self) -> Option<&str> {
        match &self.last {
            Event::StepUnknown { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Why the step may not be repeated without a human's decision. The engine's rule for forks, applied to the
    /// journal.
    pub(super) fn undecided(&self) -> Option<&'static str> {
        match &self.last {
            Event::StepUnknown { .. } | Event::StepDecided { .. } => {
                Some("has an unknown outcome and needs a human's decision")
            }
            // It failed or waits for capacity, so it certainly had no effect.
            Event::StepFailed { .. } | Event::StepDelayed { .. } => None,
            _ if self.is_open() && self.class == Class::Once => Some("may be done only once, and is in progress"),
            _ => None,
        }
    }

    /// The step's tool, or `model`.
    pub(super) fn what(&self) -> &str {
        self.effect.call().map_or("model", |call| &call.tool)
    }
}

/// What a run is waiting for from a human.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Awaited {
    Answer {
        /// The question's id: the number of the step that asks it.
        question: u64,
        text: String,
        since: Timestamp,
    },
    /// A decision about a step whose outcome is unknown.
    Decision {
        step: u64,
        /// The attempt whose outcome is unknown.
        attempt: u32,
        /// The tool that was called, or `model`.
        what: String,
        /// Why the outcome is unknown.
        reason: String,
        since: Timestamp,
    },
}

impl Runs {
    /// What a run is waiting for from a human; `None` if nothing.
    pub async fn awaited(&self, permit: &Permit, row: &RunRow) -> Result<Option<Awaited>, Fault> {
        permit.check(|action| matches!(action, Action::ReadRun(_)))?;
        if !matches!(row.state, RunState::Asking | RunState::Parked) {
            return Ok(None);
        }
        let standing = match self.standing(row, row.head).await {
            Ok(Some(standing)) => standing,
            Ok(None) => return Ok(None),
            // A run with a damaged journal can still be read.
            Err(fault) => {
                tracing::warn!(run_id = %row.id, error = %fault, "reading what a run waits for failed");
                return Ok(None);
            }
        };
        if let Some(question) = standing.question() {
            let text = super::bodies::fetch(self.store(), question).await?;
            return Ok(Some(Awaited::Answer { question: standing.step, text, since: standing.since }));
        }
        Ok(standing.parked().map(|reason| Awaited::Decision {
            step: standing.step,
            attempt: standing.attempt,
            what: standing.what().to_owned(),
            reason: reason.to_owned(),
            since: standing.last.at(),
        }))
    }

    /// The newest step up to an entry; `None` if there is no step after the run's start or its fork.
    pub(super) async fn standing(&self, run: &RunRow, through: u64) -> Result<Option<Standing>, Fault> {
        let mut last: Option<(u64, Event)> = None;
        let mut until = through;
        while until > 0 {
            let after = until.saturating_sub(WINDOW);
            let mut page = Vec::new();
            let mut from = after;
            // A page ends with a parent's history, so it may be shorter than requested.
            while from < until {
                let limit = u32::try_from(until - from).unwrap_or(u32::MAX);
                let more = self.store().journal_page(run.id.clone(), from, limit).await;
                let more = more.map_err(|error| Fault::of_run(&run.id, error))?;
                let Some(end) = more.last() else { break };
                from = end.seq;
                page.extend(more);
            }
            for entry in page.iter().rev().filter(|entry| entry.seq <= until) {
                if agent_of_entry(entry.seq, &entry.entry).is_some() {
                    return Ok(None);
                }
                let event = Entry::decode(&entry.entry).map_err(|error| unreadable(&run.id, entry.seq, error))?;
                let event = event.event;
                if matches!(event, Event::Forked { .. } | Event::RunStarted { .. }) {
                    return Ok(None);
                }
                let Some(step) = event.step() else { continue };
                if let Event::StepIntended { attempt, effect, class, at, .. } = &event {
                    let (attempt, effect, class, since) = (*attempt, effect.clone(), *class, *at);
                    let (seq, last) = last.unwrap_or((entry.seq, event));
                    return Ok(Some(Standing { step, attempt, effect, class, since, last, seq }));
                }
                last.get_or_insert((entry.seq, event));
            }
            until = after;
        }
        Ok(None)
    }
}
