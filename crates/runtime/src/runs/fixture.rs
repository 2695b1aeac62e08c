//! Replays and fixtures: a run derived again from its journal, without executing effects.
//!
//! A fixture is a run's whole journal with every body: it needs no store, and fails whenever behaviour drifts.

use std::collections::BTreeMap;

use saggar_engine::{
    Body, BuiltIn, ChildEnd, Divergence, Effect, Entry, EntryError, Event, RunOutcome, Settled, ToolCall, replay,
};
use serde::{Deserialize, Serialize};

use super::bodies::fetch;
use super::damage::unreadable;
use super::handle::Runs;
use crate::fault::Fault;
use crate::permit::{Action, Permit};

/// The value of a fixture's `schema` field.
pub const FIXTURE_SCHEMA: &str = "saggar.fixture/v1";

/// The result of a replay.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Number of entries that agreed.
    pub agreed: usize,
    /// Number of entries.
    pub entries: usize,
    /// The first difference.
    pub divergence: Option<Divergence>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fixture {
    /// [`FIXTURE_SCHEMA`].
    pub schema: String,
    /// Its entries, as they were written.
    pub entries: Vec<serde_json::Value>,
    /// The long bodies that they name, by hash.
    pub blobs: BTreeMap<String, String>,
}

/// Why a fixture fails.
#[derive(Debug, thiserror::Error)]
pub enum Drift {
    /// It isn't a fixture, or has a newer version.
    #[error("is not a fixture of a known version: {0}")]
    Unreadable(String),
    #[error("entry {at} can't be read")]
    Entry {
        /// From 0.
        at: usize,
        #[source]
        source: EntryError,
    },
    /// A body is missing, or doesn't match its hash.
    #[error("the body {0} is missing or has changed")]
    Blob(String),
    /// Other events would be decided now.
    #[error("behaviour has changed at entry {}: recorded {}, derived {}", .0.at, name(.0.recorded.as_ref()), name(.0.derived.as_ref()))]
    Diverged(Box<Divergence>),
}

impl Runs {
    /// Replays a run from its journal.
    pub async fn replay(&self, permit: &Permit) -> Result<Replay, Fault> {
        let events: Vec<Event> = self.entries(permit).await?.into_iter().map(|entry| entry.event).collect();
        let replayed = replay(&events);
        Ok(Replay { agreed: replayed.agreed, entries: events.len(), divergence: replayed.divergence })
    }

    /// Exports a fixture of a run.
    pub async fn export(&self, permit: &Permit) -> Result<Fixture, Fault> {
        let run = permit.run()?;
        let entries = self.entries(permit).await?;
        let mut blobs = BTreeMap::new();
        for entry in &entries {
            for body in bodies(&entry.event) {
                if let Body::Blob { hash, .. } = body {
                    let text = fetch(self.store(), body).await;
                    blobs.insert(hash.clone(), text.map_err(|error| Fault::of_run(run, error))?);
                }
            }
        }
        let entries = entries.iter().map(|entry| serde_json::to_value(entry).expect("every entry is JSON")).collect();
        Ok(Fixture { schema: FIXTURE_SCHEMA.to_owned(), entries, blobs })
    }

    async fn entries(&self, permit: &Permit) -> Result<Vec<Entry>, Fault> {
        permit.check(|action| matches!(action, Action::ReadRun(_)))?;
        let run = permit.run()?;
        let mut entries = Vec::new();
        loop {
            let after = entries.len() as u64;
            let page = self.journal(permit, after).await?;
            if page.is_empty() {
                return Ok(entries);
            }
            for entry in page {
                let decoded = Entry::decode(&entry.entry);
                entries.push(decoded.map_err(|error| unreadable(run, entry.seq, error))?);
            }
        }
    }
}

impl Fixture {
    /// Replays the run. Nothing is executed, and nothing but the fixture is read.
    pub fn check(&self) -> Result<usize, Drift> {
        if self.schema != FIXTURE_SCHEMA {
            return Err(Drift::Unreadable(format!("its schema is {:?}", self.schema)));
        }
        let mut events = Vec::with_capacity(self.entries.len());
        for (at, entry) in self.entries.iter().enumerate() {
            let entry = Entry::decode(&entry.to_string()).map_err(|source| Drift::Entry { at, source })?;
            for body in bodies(&entry.event) {
                if let Body::Blob { hash, .. } = body {
                    let is_there = self
                        .blobs
                        .get(hash)
                        .is_some_and(|text| saggar_store::BlobHash::of(text.as_bytes()).to_hex() == *hash);
                    if !is_there {
                        return Err(Drift::Blob(hash.clone()));
                    }
                }
            }
            events.push(entry.event);
        }
        let replayed = replay(&events);
        match replayed.divergence {
            Some(divergence) => Err(Drift::Diverged(Box::new(divergence))),
            None => Ok(replayed.agreed),
        }
    }
}

/// Every body in an event.
pub(super) fn bodies(event: &Event) -> Vec<&Body> {
    match event {
        Event::RunStarted { agent, .. } => {
            let others = agent.agents.values().flat_map(|other| &other.system);
            agent.system.iter().chain([&agent.task]).chain(others).collect()
        }
        Event::Forked { message, .. } | Event::RolledBack { message, .. } => message.iter().collect(),
        Event::BudgetReached { note, .. } => note.iter().collect(),
        Event::StepIntended { effect, .. } => {
            let asked = match effect {
                Effect::AskHuman { question: body, .. } | Effect::Delegate { task: body, .. } => Some(body),
                Effect::CallModel { .. }
                | Effect::Summarize { .. }
                | Effect::CallTool { .. }
                | Effect::Wait { .. }
                | Effect::TakeSnapshot => None,
            };
            effect.call().into_iter().flat_map(of_call).chain(asked).collect()
        }
        Event::StepSettled { result, .. } => match result {
            Settled::Replied(reply) => reply.bodies(),
            Settled::Returned(result) => vec![&result.content],
            Settled::Ended(ChildEnd { outcome: RunOutcome::Completed { answer }, .. }) => vec![answer],
            Settled::Ended(ChildEnd { outcome: RunOutcome::BudgetExceeded { answer, .. }, .. }) => {
                answer.iter().collect()
            }
            Settled::Ended(_) | Settled::GaveUp(_) | Settled::Kept => Vec::new(),
        },
        Event::SignalReceived { body, .. } | Event::Corrected { note: body, .. } => vec![body],
        Event::StepDecided { decision: saggar_engine::Decision::Done(body), .. } => vec![body],
        Event::StepDecided { .. }
        | Event::Claimed { .. }
        | Event::Priced { .. }
        | Event::SandboxCalled { .. }
        | Event::StepFailed { .. }
        | Event::StepDelayed { .. }
        | Event::StepUnknown { .. }
        | Event::StepProbed { .. }
        | Event::StepInterrupted { .. }
        | Event::BudgetRaised { .. }
        | Event::Paused { .. }
        | Event::Resumed { .. }
        | Event::StepAbandoned { .. }
        | Event::RunFinished { .. } => Vec::new(),
    }
}

fn of_call(call: &ToolCall) -> impl Iterator<Item = &Body> {
    [&call.arguments].into_iter().chain(call.read.as_deref().and_then(BuiltIn::body))
}

fn name(event: Option<&Event>) -> &'static str {
    event.map_or("nothing", Event::name)
}
