//! Entries: events in their stored, versioned form.

use serde::{Deserialize, Serialize};

use crate::event::Event;

/// The version of [`Entry`] that is written. Version 2 added child runs. Version 3 added the rules of a claim,
/// answers that name their question, steps that wait for a resume or for capacity, and forks that redo an open call.
/// Version 4 added calls that are known to be malformed, several open steps, replies of providers as they came, and
/// what a model call may come to. Version 5 added what programs in a run's sandboxes ask of models.
pub const ENTRY_VERSION: u32 = 5;

/// An event with its position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Version of this record.
    pub v: u32,
    /// 1, 2, 3 … without gaps within a run.
    pub seq: u64,
    #[serde(flatten)]
    pub event: Event,
}

#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// Not an entry, or damaged.
    #[error("an entry can't be read")]
    Unreadable(#[source] serde_json::Error),
    /// Written by a newer version.
    #[error("an entry of version {0} is newer than this program, which knows {ENTRY_VERSION}")]
    TooNew(u32),
}

impl Entry {
    pub fn new(seq: u64, event: Event) -> Self {
        Self { v: ENTRY_VERSION, seq, event }
    }

    /// One line of JSON.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("every event is JSON")
    }

    /// Decodes an entry. The version is checked first, because a newer entry may have any shape.
    pub fn decode(text: &str) -> Result<Self, EntryError> {
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        let Version { v } = serde_json::from_str(text).map_err(EntryError::Unreadable)?;
        if v > ENTRY_VERSION {
            return Err(EntryError::TooNew(v));
        }
        serde_json::from_str(text).map_err(EntryError::Unreadable)
    }
}
