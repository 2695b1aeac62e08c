//! State changes of a sandbox, each allowed only from certain states.
//!
//! ```text
//!   creating ──Started──▶ running ──Paused──▶ paused
//!      │                     ▲ │                │ │
//!      │                     └─┼────Resumed─────┘ │
//!      └────────Ended──────────┴───────Ended──────┴──▶ ended
//! ```
//!
//! If two callers change the same sandbox at once, one succeeds and the other gets the state that it found. Of two
//! ends the first wins.

use rusqlite::Connection;
use saggar_domain::{SandboxId, SandboxState, Timestamp};

use super::Ending;
use crate::column;
use crate::decision::{self, StoredDecision};
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
    /// It is usable; from `creating`.
    Started { at: Timestamp, supervisor_pid: u32 },
    /// It is frozen; from `running`.
    Paused { at: Timestamp },
    /// It runs again; from `paused`.
    Resumed { at: Timestamp },
    /// It is over; from any other state. Execs that were running are lost.
    Ended(Ending),
}

/// What a supervisor leaves about a sandbox that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastWords {
    pub events: Vec<StoredEvent>,
    pub decisions: Vec<StoredDecision>,
    pub execs: Vec<ExecRecord>,
    pub ending: Ending,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    Done,
    /// Nothing was written: the change isn't allowed in this state of the sandbox.
    Otherwise(SandboxState),
    Absent,
}

impl Store {
    /// Changes a sandbox's state if its current state allows it.
    pub async fn change_sandbox(&self, id: SandboxId, change: Change) -> Result<Changed, Error> {
        self.write(Durability::Process, move |connection| apply(connection, &id, &change)).await
    }

    /// [`Change::Ended`].
    pub async fn end_sandbox(&self, id: SandboxId, ending: Ending) -> Result<Changed, Error> {
        self.change_sandbox(id, Change::Ended(ending)).await
    }

    /// Writes a sandbox's events, its execs and its end in one commit. Parts of it may be written already.
    pub async fn write_last_words(&self, id: SandboxId, last: LastWords) -> Result<Changed, Error> {
        let work = move |connection: &Connection| {
            event::append(connection, &id, &last.events)?;
            decision::append(connection, &id, &last.decisions)?;
            for record in &last.execs {
                exec::record(connection, record)?;
            }
            // Last, because it marks every exec without an end as lost.
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

/// Why nothing was changed.
pub(super) fn found(connection: &Connection, id: &SandboxId) -> Result<Changed, Error> {
    let state = column::one(connection, STATE, [id.as_str()], |row| column::parsed(row, "state", SandboxState::parse))?;
    Ok(state.map_or(Changed::Absent, Changed::Otherwise))
}
