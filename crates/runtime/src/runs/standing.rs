//! Where a run stands after an entry, read backwards from there: the cost doesn't grow with its past.
//!
//! This is for explaining and refusing requests. What becomes of a request that is accepted, the engine decides when a worker reads it.

use saggar_domain::{RunState, Timestamp};
use saggar_engine::{Body, Class, Effect, Entry, Event};
use saggar_store::RunRow;

use super::damage::unreadable;
use super::handle::Runs;
use super::stored_agent::agent_of_entry;
use crate::fault::Fault;
use crate::permit::{Action, Permit};

/// Entries read at once while looking backwards.
const WINDOW: u64 = 64;

/// The newest step up to an entry.
#[derive(Clone, Debug)]
pub(super) struct Standing {
    pub(super) step: u64,
    pub(super) effect: Effect,
    pub(super) class: Class,
    /// When its newest attempt was intended.
    pub(super) since: Timestamp,
    /// The newest event that names it, and the number of that entry.
    pub(super) last: Event,
    pub(super) seq: u64,
}

impl Standing {
    /// Whether the step is not settled yet.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.last, Event::StepSettled { .. } | Event::StepAbandoned { .. })
    }

    /// The question, where it is open.
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

    /// Why nobody knows whether the step was done, where it is parked.
    pub(super) fn parked(&self) -> Option<&str> {
        match &self.last {
            Event::StepUnknown { reason, .. } => Some(reason),
            _ => None,
        }
    }

    /// Why nobody may do the step again without a person's word. The engine's rule for forks, on what the journal says.
    pub(super) fn undecided(&self) -> Option<&'static str> {
        match &self.last {
            Event::StepUnknown { .. } | Event::StepDecided { .. } => {
                Some("may have been done or not, and a person decides about it")
            }
            // It failed, or waits for room: it certainly did nothing.
            Event::StepFailed { .. } | Event::StepDelayed { .. } => None,
            _ if self.is_open() && self.class == Class::Once => Some("may be done only once, and is under way"),
            _ => None,
        }
    }

    /// What the step does, in a word: its tool, or `model`.
    pub(super) fn what(&self) -> &str {
        self.effect.call().map_or("model", |call| &call.tool)
    }
}

/// What a run waits for from a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Awaited {
    Answer {
        /// The question's id: the number of the step that asks it.
        question: u64,
        /// What is asked.
        text: String,
        since: Timestamp,
    },
    /// A decision about a step of which nobody knows whether it was done.
    Decision {
        step: u64,
        /// The tool that was called, or `model`.
        what: String,
        /// Why nobody knows.
        reason: String,
        since: Timestamp,
    },
}

impl Runs {
    /// What a run waits for from a person, if it does.
    pub async fn awaited(&self, permit: &Permit, row: &RunRow) -> Result<Option<Awaited>, Fault> {
        permit.check(|action| matches!(action, Action::ReadRun(_)))?;
        if !matches!(row.state, RunState::Asking | RunState::Parked) {
            return Ok(None);
        }
        let standing = match self.standing(row, row.head).await {
            Ok(Some(standing)) => standing,
            Ok(None) => return Ok(None),
            // A run whose journal is damaged can still be looked at.
            Err(fault) => {
                tracing::warn!(run_id = %row.id, error = %fault, "what a run waits for can't be read");
                return Ok(None);
            }
        };
        if let Some(question) = standing.question() {
            let text = super::bodies::fetch(self.store(), question).await?;
            return Ok(Some(Awaited::Answer { question: standing.step, text, since: standing.since }));
        }
        Ok(standing.parked().map(|reason| Awaited::Decision {
            step: standing.step,
            what: standing.what().to_owned(),
            reason: reason.to_owned(),
            since: standing.last.at(),
        }))
    }

    /// The newest step up to an entry; `None` where a fork or the run's beginning comes after every step.
    pub(super) async fn standing(&self, run: &RunRow, through: u64) -> Result<Option<Standing>, Fault> {
        let mut last: Option<(u64, Event)> = None;
        let mut until = through;
        while until > 0 {
            let after = until.saturating_sub(WINDOW);
            let mut page = Vec::new();
            let mut from = after;
            // A page ends where a parent's past does, so it may be shorter than asked for.
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
                if let Event::StepIntended { effect, class, at, .. } = &event {
                    let (effect, class, since) = (effect.clone(), *class, *at);
                    let (seq, last) = last.unwrap_or((entry.seq, event));
                    return Ok(Some(Standing { step, effect, class, since, last, seq }));
                }
                last.get_or_insert((entry.seq, event));
            }
            until = after;
        }
        Ok(None)
    }
}
