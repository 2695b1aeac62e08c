//! Entries: events as they are stored, versioned from the first day.

use serde::{Deserialize, Serialize};

use crate::event::Event;

/// The version of [`Entry`] that is written. 2 knows child runs; 3 knows the rules of a claim, answers that name their question, steps that
/// wait for a resume or for room, and forks that do an open call again.
pub const ENTRY_VERSION: u32 = 3;

/// One event with its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The version of this record.
    pub v: u32,
    /// 1, 2, 3 … without a gap within a run.
    pub seq: u64,
    #[serde(flatten)]
    pub event: Event,
}

/// What can't be an entry.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// Not one, or damaged.
    #[error("an entry can't be read")]
    Unreadable(#[source] serde_json::Error),
    /// From a newer version.
    #[error("an entry of version {0} is newer than this program, which knows {ENTRY_VERSION}")]
    TooNew(u32),
}

impl Entry {
    /// An entry of the version that is written.
    pub fn new(seq: u64, event: Event) -> Self {
        Self { v: ENTRY_VERSION, seq, event }
    }

    /// As JSON, on one line.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("every event is JSON")
    }

    /// Reads it back. The version comes first: what is newer may look like anything.
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
