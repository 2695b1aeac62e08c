//! The steps of a run's turn after an entry, found by reading backwards: the cost doesn't grow with its history. A model
//! is called when nothing else is open, so what is open was intended since the last such call.
//!
//! This serves to explain and refuse requests. When a worker reads an accepted request, the engine decides about it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry::Vacant;

use saggar_domain::{RunId, Timestamp};
use saggar_engine::{Body, Class, Effect, Entry, Event};
use saggar_store::RunRow;

use super::damage::unreadable;
use super::handle::Runs;
use super::stored_agent::agent_of_entry;
use crate::fault::Fault;
use crate::permit::{Action, Permit};

/// Entries read at once while going backwards.
const WINDOW: u64 = 64;
/// Entries of older versions are of runs with at most one open step.
const SEVERAL_STEPS: u32 = 4;

/// A step of the turn, as of an entry.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub(super) step: u64,
    /// Its newest attempt.
    pub(super) attempt: u32,
    pub(super) effect: Effect,
    pub(super) class: Class,
    /// The newest event that names it, and the number of that entry.
    pub(super) last: Event,
    pub(super) seq: u64,
}

impl Standing {
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.last, Event::StepSettled { .. } | Event::Corrected { .. } | Event::StepAbandoned { .. })
    }

    /// The question, if it is open.
    pub(super) fn question(&self) -> Option<&Body> {
        match &self.effect {
            Effect::AskHuman { question, .. } if self.is_open() => Some(question),
            Effect::AskHuman { .. }
            | Effect::CallModel { .. }
            | Effect::Summarize { .. }
            | Effect::CallTool { .. }
            | Effect::Wait { .. }
            | Effect::Delegate { .. }
            | Effect::TakeSnapshot => None,
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

    /// The step's tool, or `model` or `snapshot`.
    pub(super) fn what(&self) -> &str {
        match &self.effect {
            Effect::TakeSnapshot => "snapshot",
            effect => effect.call().map_or("model", |call| &call.tool),
        }
    }
}

/// A step that is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenNow {
    pub step: u64,
    pub attempt: u32,
    /// The tool that was called, or `model`.
    pub what: String,
    pub doing: DoingNow,
    /// Since when it is doing that.
    pub since: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DoingNow {
    InProgress,
    /// It asks this, and waits for a person's answer. The question's id is the number of the step.
    Asks(String),
    /// Waits for a time.
    Waits {
        until: Timestamp,
        /// The name of the signal that ends the wait earlier.
        signal: Option<String>,
    },
    /// Waits for the end of this child run.
    Delegates(RunId),
    /// Its executor is being asked whether it was done.
    IsProbed,
    /// It failed, and is tried again.
    Failed {
        retry_at: Timestamp,
    },
    /// It can't start for this reason.
    IsDelayed(String),
    /// It goes on when the run is resumed.
    IsInterrupted,
    /// Its outcome is unknown for this reason: a person decides.
    IsParked(String),
}

impl Runs {
    /// The open steps of a run, in their order.
    pub async fn open_now(&self, permit: &Permit, row: &RunRow) -> Result<Vec<OpenNow>, Fault> {
        permit.check(|action| matches!(action, Action::ReadRun(_)))?;
        if row.outcome.is_some() {
            return Ok(Vec::new());
        }
        let turn = match self.turn(row, row.head).await {
            Ok(turn) => turn,
            // A run with a damaged journal can still be read.
            Err(fault) => {
                tracing::warn!(run_id = %row.id, error = %fault, "reading what a run waits for failed");
                return Ok(Vec::new());
            }
        };
        let mut open = Vec::new();
        for standing in turn.iter().filter(|standing| standing.is_open()) {
            let doing = match (&standing.last, &standing.effect) {
                (Event::StepFailed { retry_at, .. }, _) => DoingNow::Failed { retry_at: *retry_at },
                (Event::StepDelayed { reason, .. }, _) => DoingNow::IsDelayed(reason.clone()),
                (Event::StepUnknown { reason, .. }, _) => DoingNow::IsParked(reason.clone()),
                (Event::StepProbed { .. }, _) => DoingNow::IsProbed,
                (Event::StepInterrupted { .. }, _) => DoingNow::IsInterrupted,
                (_, Effect::AskHuman { question, .. }) => {
                    DoingNow::Asks(super::bodies::fetch(self.store(), question).await?)
                }
                (_, Effect::Wait { until, signal, .. }) => DoingNow::Waits { until: *until, signal: signal.clone() },
                (_, Effect::Delegate { child, .. }) => DoingNow::Delegates(child.clone()),
                (
                    _,
                    Effect::CallModel { .. }
                    | Effect::Summarize { .. }
                    | Effect::CallTool { .. }
                    | Effect::TakeSnapshot,
                ) => DoingNow::InProgress,
            };
            let (what, since) = (standing.what().to_owned(), standing.last.at());
            open.push(OpenNow { step: standing.step, attempt: standing.attempt, what, doing, since });
        }
        Ok(open)
    }

    /// The steps up to an entry that began with the last call of the model, in their order. Those before have all been
    /// settled. None if there is no step after the run's start or its fork.
    pub(super) async fn turn(&self, run: &RunRow, through: u64) -> Result<Vec<Standing>, Fault> {
        let mut turn: BTreeMap<u64, Standing> = BTreeMap::new();
        // The newest event of each step whose intent is still to be found.
        let mut last: BTreeMap<u64, (u64, Event)> = BTreeMap::new();
        let mut until = through;
        'journal: while until > 0 {
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
                    break 'journal;
                }
                let Entry { v, event, .. } =
                    Entry::decode(&entry.entry).map_err(|error| unreadable(&run.id, entry.seq, error))?;
                // Nothing that was open before is open after these.
                if matches!(event, Event::Forked { .. } | Event::RolledBack { .. } | Event::RunStarted { .. }) {
                    break 'journal;
                }
                let Some(step) = event.step() else { continue };
                let Event::StepIntended { attempt, effect, class, .. } = &event else {
                    last.entry(step).or_insert((entry.seq, event));
                    continue;
                };
                let is_first = effect.is_of_model() || v < SEVERAL_STEPS;
                if let Vacant(place) = turn.entry(step) {
                    let (attempt, effect, class) = (*attempt, effect.clone(), *class);
                    let (seq, last) = last.remove(&step).unwrap_or((entry.seq, event));
                    place.insert(Standing { step, attempt, effect, class, last, seq });
                }
                if is_first {
                    break 'journal;
                }
            }
            until = after;
        }
        Ok(turn.into_values().collect())
    }
}
