//! Verifies a data directory, including the contents of its journals.

use std::path::Path;

use saggar_domain::RunState;
use saggar_engine::{Body, Entry, EntryError, Run};
use saggar_store::{BlobHash, Blobs, Checked, JournalEntry, OpenError, RunRow};

use super::fixture::bodies;
use super::stored_agent::{agent_of_entry, with_agent};
use crate::secrets::{KeyFile, Opener};

/// Verifies the store of a data directory: its log, its pages, every journal, every blob and every seal. Only reads; a server may
/// be running.
pub fn check_data_directory(data_directory: &Path, key_file: &KeyFile) -> Result<Checked, OpenError> {
    let mut opener = Opener::new(key_file);
    saggar_store::check(data_directory, judge, |secret| opener.judge(secret))
}

/// What is wrong with a run.
fn judge(row: &RunRow, entries: &[JournalEntry], blobs: &Blobs<'_>) -> Option<String> {
    let mut run = Run::new();
    for entry in entries {
        let seq = entry.seq;
        let read = match agent_of_entry(seq, &entry.entry) {
            None => Entry::decode(&entry.entry),
            Some(agent) => match blobs.get(agent) {
                Some(agent) => with_agent(&entry.entry, &agent),
                None => return Some(format!("entry {seq} names a missing agent")),
            },
        };
        match read {
            Ok(entry) if entry.seq != seq => return Some(format!("entry {seq} has the number {}", entry.seq)),
            Ok(entry) => {
                let is_there = |body: &Body| match body {
                    Body::Blob { hash, .. } => BlobHash::parse(hash).is_some_and(|hash| blobs.has(hash)),
                    Body::Text(_) => true,
                };
                if !bodies(&entry.event).into_iter().all(is_there) {
                    return Some(format!("entry {seq} names a missing blob"));
                }
                run.apply(&entry.event);
            }
            Err(EntryError::TooNew(version)) => {
                return Some(format!("entry {seq} has version {version}, which needs a newer program"));
            }
            Err(EntryError::Unreadable(_)) => return Some(format!("entry {seq} can't be read")),
        }
    }
    if run.agent().is_none() {
        return Some("its journal has no first entry".to_owned());
    }
    let told = row.outcome.as_ref().and_then(|outcome| outcome.to_value::<saggar_engine::RunOutcome>().ok());
    match (row.state == RunState::Finished, run.outcome()) {
        (false, None) => None,
        (true, Some(outcome)) if told.as_ref() == Some(outcome) => None,
        (true, Some(_)) => Some("its row and its journal have different outcomes".to_owned()),
        (true, None) => Some("its row says that it has finished, but its journal does not".to_owned()),
        (false, Some(_)) => Some("its journal says that it has finished, but its row does not".to_owned()),
    }
}
