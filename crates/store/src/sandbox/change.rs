//! The steps of a sandbox's life, each from the states it may follow and from no other.
//!
//! ```text
//!   creating ──Started──▶ running ──Paused──▶ paused
//!      │                     ▲ │                │ │
//!      │                     └─┼────Resumed─────┘ │
//!      └────────Ended──────────┴───────Ended──────┴──▶ ended
//! ```
//!
//! Two who change the same sandbox at once: one succeeds, the other is told what state it found. Of two ends the first stands.

use rusqlite::Connection;
use saggar_domain::{SandboxId, SandboxState, Timestamp};

use super::Ending;
use crate::column;
use crate::error::Error;
use crate::event::{self, StoredEvent};
use crate::exec::{self, ExecRecord};
use crate::store::Store;
use crate::writer::Durability;

const STARTED: &str = "
    UPDATE sandbox SET state = 'running', state_since = ?2, started_at = ?2, supervisor_pid = ?3
    WHERE id = ?1 AND state = 'creating'";
const PAUSED: &str = "UPDATE sandbox SET state = 'paused', state_since = ?2 WHERE id = ?1 AND state = 'running'";
const RESUMED: &str = "UPDATE sandbox SET state = 'running', state_since = ?2 WHERE id = ?1 AND state = 'paused'";
const ENDED: &str = "
    UPDATE sandbox SET state = 'ended', state_since = ?2, ended_at = ?2, end_reason = ?3, end_detail_json = ?4
    WHERE id = ?1 AND state <> 'ended'";
const STATE: &str = "SELECT state FROM sandbox WHERE id = ?1";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It can be used; from `creating`.
    Started {
        at: Timestamp,
        /// The process that holds it.
        supervisor_pid: u32,
    },
    /// It is frozen; from `running`.
    Paused { at: Timestamp },
    /// It goes on; from `paused`.
    Resumed { at: Timestamp },
    /// It is over; from any other. What still ran in it is lost.
    Ended(Ending),
}

/// What a sandbox that is over leaves to be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastWords {
    /// What happened in it.
    pub events: Vec<StoredEvent>,
    /// What was run in it.
    pub execs: Vec<ExecRecord>,
    /// How it ended.
    pub ending: Ending,
}

/// What became of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It is written.
    Done,
    /// Nothing was written: the sandbox is in this state, which the change can't follow.
    Otherwise(SandboxState),
    /// There is no such sandbox.
    Absent,
}

impl Store {
    /// Writes a step of a sandbox's life, if it follows from the state the sandbox is in.
    pub async fn change_sandbox(&self, id: SandboxId, change: Change) -> Result<Changed, Error> {
        self.write(Durability::Process, move |connection| apply(connection, &id, &change)).await
    }

    /// Ends a sandbox: [`Change::Ended`] by its own name.
    pub async fn end_sandbox(&self, id: SandboxId, ending: Ending) -> Result<Changed, Error> {
        self.change_sandbox(id, Change::Ended(ending)).await
    }

    /// Writes all that a sandbox left to be known, in one commit: its events, its execs, its end. Any of it may be written already.
    pub async fn write_last_words(&self, id: SandboxId, last: LastWords) -> Result<Changed, Error> {
        let work = move |connection: &Connection| {
            event::append(connection, &id, &last.events)?;
            for record in &last.execs {
                exec::record(connection, record)?;
            }
            // Last, for it gives up every exec that has no end yet.
            apply(connection, &id, &Change::Ended(last.ending.clone()))
        };
        self.write(Durability::Process, work).await
    }
}

pub(super) fn apply(connection: &Connection, id: &SandboxId, change: &Change) -> Result<Changed, Error> {
    let touched = match change {
        Change::Started { at, supervisor_pid } => {
            column::execute(connection, STARTED, (id.as_str(), column::millis(*at), supervisor_pid))?
        }
        Change::Paused { at } => column::execute(connection, PAUSED, (id.as_str(), column::millis(*at)))?,
        Change::Resumed { at } => column::execute(connection, RESUMED, (id.as_str(), column::millis(*at)))?,
        Change::Ended(ending) => end(connection, id, ending)?,
    };
    if touched > 0 { Ok(Changed::Done) } else { found(connection, id) }
}

fn end(connection: &Connection, id: &SandboxId, ending: &Ending) -> Result<usize, Error> {
    let detail = ending.detail.as_ref().map(|detail| detail.as_str());
    let params = (id.as_str(), column::millis(ending.at), ending.reason.as_str(), detail);
    let touched = column::execute(connection, ENDED, params)?;
    if touched > 0 {
        exec::lose_running(connection, id, ending.at)?;
    }
    Ok(touched)
}

/// Why nothing was touched.
pub(super) fn found(connection: &Connection, id: &SandboxId) -> Result<Changed, Error> {
    let state = column::one(connection, STATE, [id.as_str()], |row| column::parsed(row, "state", SandboxState::parse))?;
    Ok(state.map_or(Changed::Absent, Changed::Otherwise))
}
