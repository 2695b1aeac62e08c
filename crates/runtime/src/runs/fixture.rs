//! Replays and fixtures: a run derived again from its journal, here or anywhere, with no effect executed.
//!
//! A fixture is a run's whole journal with every body in it: it needs no store, and fails for ever when behaviour drifts.

use std::collections::BTreeMap;

use saggar_engine::{
    Body, BuiltIn, ChildEnd, Divergence, Effect, Entry, EntryError, Event, Outcome, Settled, ToolCall, replay,
};
use serde::{Deserialize, Serialize};

use super::bodies::fetch;
use super::damage::unreadable;
use super::handle::Runs;
use crate::fault::Fault;
use crate::permit::{Action, Permit};

/// What a fixture says it is.
pub const FIXTURE_SCHEMA: &str = "saggar.fixture/v1";

/// What a replay found.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Entries that agreed.
    pub agreed: usize,
    /// Entries there are.
    pub entries: usize,
    /// Where it first doesn't agree.
    pub divergence: Option<Divergence>,
}

/// A run to keep.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fixture {
    /// [`FIXTURE_SCHEMA`].
    pub schema: String,
    /// Its entries, as they were written.
    pub entries: Vec<serde_json::Value>,
    /// The long bodies that they name, by hash.
    pub blobs: BTreeMap<String, String>,
}

/// Why a fixture isn't what it was.
#[derive(Debug, thiserror::Error)]
pub enum Drift {
    /// It isn't a fixture, or one of a newer version.
    #[error("it is no fixture of a kind that this program knows: {0}")]
    Unreadable(String),
    /// An entry can't be read.
    #[error("entry {at} can't be read")]
    Entry {
        /// Which, from 0.
        at: usize,
        #[source]
        source: EntryError,
    },
    /// A body is missing, or isn't what its name says.
    #[error("the body {0} is missing, or another")]
    Blob(String),
    /// Other events would be decided now.
    #[error("behaviour has changed at entry {}: recorded {}, derived {}", .0.at, name(.0.recorded.as_ref()), name(.0.derived.as_ref()))]
    Diverged(Box<Divergence>),
}

impl Runs {
    /// Derives a run again from its journal.
    pub async fn replay(&self, permit: &Permit) -> Result<Replay, Fault> {
        let events: Vec<Event> = self.entries(permit).await?.into_iter().map(|entry| entry.event).collect();
        let replayed = replay(&events);
        Ok(Replay { agreed: replayed.agreed, entries: events.len(), divergence: replayed.divergence })
    }

    /// A fixture of a run.
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
    /// Derives the run again. No effect is executed, and nothing is read but this.
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

/// Every body that an event holds.
pub(super) fn bodies(event: &Event) -> Vec<&Body> {
    match event {
        Event::RunStarted { agent, .. } => {
            let others = agent.agents.values().flat_map(|other| &other.system);
            agent.system.iter().chain([&agent.task]).chain(others).collect()
        }
        Event::Forked { message, .. } => message.iter().collect(),
        Event::StepIntended { effect, .. } => {
            let asked = match effect {
                Effect::AskHuman { question: body, .. } | Effect::Delegate { task: body, .. } => Some(body),
                Effect::CallModel { .. } | Effect::CallTool { .. } | Effect::Wait { .. } => None,
            };
            effect.call().into_iter().flat_map(of_call).chain(asked).collect()
        }
        Event::StepSettled { result, .. } => match result {
            Settled::Replied(reply) => reply.calls.iter().flat_map(of_call).chain([&reply.text]).collect(),
            Settled::Returned(result) => vec![&result.content],
            Settled::Ended(ChildEnd { outcome: Outcome::Completed { answer }, .. }) => vec![answer],
            Settled::Ended(_) | Settled::GaveUp(_) => Vec::new(),
        },
        Event::SignalReceived { body, .. } => vec![body],
        Event::StepDecided { decision: saggar_engine::Decision::Done(body), .. } => vec![body],
        Event::StepDecided { .. }
        | Event::Claimed { .. }
        | Event::StepFailed { .. }
        | Event::StepDelayed { .. }
        | Event::StepUnknown { .. }
        | Event::StepProbed { .. }
        | Event::StepInterrupted { .. }
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
