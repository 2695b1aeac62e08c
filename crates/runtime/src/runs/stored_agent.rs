//! Agents that are stored once. A run's first entry has its agent; a large one is stored as a blob under its hash,
//! and the entry names it. So a hundred children or runs of one agent cost one copy.
//!
//! The parts that differ between runs, the task and the budget, stay in the entry. Reading a journal merges the two:
//! for the engine, the API and a fixture, the agent is part of the entry. Entries of version 2 and before contain it
//! directly.

use saggar_engine::{AgentSpec, Body, Budget, Entry, EntryError, Event};
use saggar_store::{BlobHash, Error};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::journal::Journal;

/// A shorter agent stays in the entry.
const AGENT_INLINE_MAX: usize = 1024;
/// The first entry of a journal, which starts a run; no other has an agent.
const FIRST: u64 = 1;

/// What an entry has in place of its agent.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reference {
    stored: Stored,
    task: Body,
    budget: Budget,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    hash: String,
    length: u64,
}

/// An entry in its stored form, and the agent that must be stored before it.
pub(super) fn pack(entry: &Entry) -> (String, Option<Vec<u8>>) {
    let Event::RunStarted { agent, .. } = &entry.event else { return (entry.encode(), None) };
    let shared = AgentSpec { task: Body::text(""), budget: Budget::default(), ..AgentSpec::clone(agent) };
    let bytes = serde_json::to_vec(&shared).expect("every agent is JSON");
    if bytes.len() <= AGENT_INLINE_MAX {
        return (entry.encode(), None);
    }
    let stored = Stored { hash: BlobHash::of(&bytes).to_hex(), length: bytes.len() as u64 };
    let reference = Reference { stored, task: agent.task.clone(), budget: agent.budget };
    let mut value = serde_json::to_value(entry).expect("every event is JSON");
    value["agent"] = serde_json::to_value(reference).expect("a reference is JSON");
    (value.to_string(), Some(bytes))
}

/// The hash of the agent that an entry names; `None` if it names none.
pub fn agent_of_entry(seq: u64, text: &str) -> Option<BlobHash> {
    #[derive(Deserialize)]
    struct Named {
        agent: Reference,
    }
    if seq != FIRST {
        return None;
    }
    let named: Named = serde_json::from_str(text).ok()?;
    BlobHash::parse(&named.agent.stored.hash)
}

/// The entry with its agent.
pub fn with_agent(text: &str, agent: &[u8]) -> Result<Entry, EntryError> {
    let mut value: Value = serde_json::from_str(text).map_err(EntryError::Unreadable)?;
    let reference: Reference = serde_json::from_value(value["agent"].take()).map_err(EntryError::Unreadable)?;
    let shared: AgentSpec = serde_json::from_slice(agent).map_err(EntryError::Unreadable)?;
    let agent = AgentSpec { task: reference.task, budget: reference.budget, ..shared };
    value["agent"] = serde_json::to_value(agent).map_err(EntryError::Unreadable)?;
    Entry::decode(&value.to_string())
}

/// Reads an entry of a journal with its agent. The inner error is permanent.
pub(super) async fn read_entry<J: Journal>(
    journal: &J,
    seq: u64,
    text: &str,
) -> Result<Result<Entry, EntryError>, Error> {
    let Some(hash) = agent_of_entry(seq, text) else { return Ok(Entry::decode(text)) };
    let damaged = || Error::Corrupt { what: "a run's first entry names a missing agent".to_owned() };
    let agent = journal.blob(hash).await?.ok_or_else(damaged)?;
    Ok(with_agent(text, &agent))
}

#[cfg(test)]
mod tests {
    use saggar_domain::{RunId, Timestamp};
    use saggar_engine::ModelRef;

    use super::*;

    fn entry(script: String, task: &str, steps: u64) -> Entry {
        let model = ModelRef {
            provider: "scripted".to_owned(),
            model: script,
            sampling: Default::default(),
            reply_tokens_max: 1,
            reply_micros_max: None,
            retry: Default::default(),
        };
        let agent = AgentSpec {
            name: "a".to_owned(),
            identity: None,
            directory: None,
            system: None,
            task: Body::text(task),
            model,
            tools: Default::default(),
            sandbox: Default::default(),
            budget: Budget { steps: Some(steps), ..Budget::default() },
            repeats_max: 8,
            corrections_max: saggar_engine::CORRECTIONS_DEFAULT,
            output: None,
            context: None,
            open_max: 1,
            on: Default::default(),
            snapshots: Default::default(),
            agents: Default::default(),
        };
        let (run, at) = (RunId::from_random([1; 16]), Timestamp::from_millis(5));
        Entry::new(1, Event::RunStarted { run, agent: Box::new(agent), child_of: None, at })
    }

    #[test]
    fn runs_of_one_agent_share_it_and_each_reads_back_as_it_was() {
        let script = "x".repeat(400_000);
        let one = entry(script.clone(), "one", 1);
        let (text, agent) = pack(&one);
        assert!(text.len() < 500, "{text}");
        let agent = agent.unwrap();
        assert_eq!(agent_of_entry(1, &text), Some(BlobHash::of(&agent)));
        assert_eq!(with_agent(&text, &agent).unwrap(), one);
        let other = entry(script, "another", 2);
        let (text, same) = pack(&other);
        assert_eq!(same.as_ref(), Some(&agent), "only its task and its budget differ");
        assert_eq!(with_agent(&text, &agent).unwrap(), other);
        assert!(Entry::decode(&text).is_err(), "a reader that doesn't know references rejects it");
    }

    #[test]
    fn a_short_agent_and_one_of_an_older_version_are_in_the_entry() {
        let short = entry("{}".to_owned(), "one", 1);
        let (text, agent) = pack(&short);
        assert_eq!((agent, agent_of_entry(1, &text)), (None, None));
        assert_eq!(Entry::decode(&text).unwrap(), short);
        for golden in
            [include_str!("../../../engine/journals/v1.jsonl"), include_str!("../../../engine/journals/v2.jsonl")]
        {
            let first = golden.lines().next().unwrap();
            assert_eq!(agent_of_entry(1, first), None);
        }
    }
}
