//! Events of a sandbox in the supervisor's order: the last ten thousand of each sandbox, and among them its decisions about the network,
//! which [`crate::decision`] bounds.

use rusqlite::{Connection, Row};
use saggar_domain::{SandboxId, Timestamp};

use crate::column;
use crate::decision::{self, StoredDecision};
use crate::error::Error;
use crate::json_text::JsonText;
use crate::page::PageLimit;
use crate::store::Store;
use crate::writer::Durability;

/// Maximum number of events kept per sandbox; the oldest are dropped.
pub const EVENTS_PER_SANDBOX_MAX: u64 = 10_000;

const INSERT: &str = "
    INSERT INTO event (sandbox_id, seq, at, body_json) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (sandbox_id, seq) DO NOTHING";
/// Numbers are unique and only rise, so their span is at least their count. Decisions are numbered too, so it may be larger.
const SPAN: &str = "SELECT max(seq) - min(seq) + 1 AS span FROM event WHERE sandbox_id = ?1";
const DROP_OLDEST: &str = "
    DELETE FROM event WHERE sandbox_id = ?1
        AND seq <= (SELECT seq FROM event WHERE sandbox_id = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)";
const LIST: &str = "
    SELECT seq, at, body_json FROM event WHERE sandbox_id = ?1 AND seq > ?2
    UNION ALL
    SELECT seq, at, body_json FROM decision WHERE sandbox_id = ?1 AND seq > ?2
    ORDER BY seq LIMIT ?3";
const NAMING: &str = "
    SELECT seq, at, body_json FROM event WHERE sandbox_id = ?1 AND instr(body_json, ?2) > 0 ORDER BY seq";
const LATEST: &str = "
    SELECT max(seq) AS latest FROM (
        SELECT max(seq) AS seq FROM event WHERE sandbox_id = ?1
        UNION ALL SELECT max(seq) AS seq FROM decision WHERE sandbox_id = ?1)";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// Position in the order, assigned by the supervisor.
    pub seq: u64,
    pub at: Timestamp,
    pub body: JsonText,
}

/// Numbers that are missing between the events, or between the requested position and the first one, are of events that were dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventPage {
    pub events: Vec<StoredEvent>,
    /// The number of the newest event of the sandbox, on whichever page.
    pub newest: Option<u64>,
}

impl Store {
    /// Appends events. One whose number exists stays as it is, so duplicates are harmless.
    pub async fn append_events(&self, sandbox: SandboxId, events: Vec<StoredEvent>) -> Result<(), Error> {
        self.write(Durability::Process, move |connection| append(connection, &sandbox, &events)).await
    }

    /// Appends events and decisions in one commit: they share their numbers, and a reader must not see a later one before an earlier one.
    pub async fn append_heard(
        &self,
        sandbox: SandboxId,
        events: Vec<StoredEvent>,
        decisions: Vec<StoredDecision>,
    ) -> Result<(), Error> {
        let work = move |connection: &Connection| {
            if !events.is_empty() {
                append(connection, &sandbox, &events)?;
            }
            decision::append(connection, &sandbox, &decisions)
        };
        self.write(Durability::Process, work).await
    }

    /// Events after this number, or from the first; in order.
    pub async fn events_after(
        &self,
        sandbox: SandboxId,
        after: Option<u64>,
        limit: PageLimit,
    ) -> Result<EventPage, Error> {
        let work = move |connection: &Connection| {
            // Numbers begin at 0, so every event is after -1.
            let after = after.map_or(-1, column::count);
            let events = column::all(connection, LIST, (sandbox.as_str(), after, limit.get()), read)?;
            Ok(EventPage { events, newest: latest(connection, &sandbox)? })
        };
        self.read(work).await
    }

    /// All events of a sandbox that contain this text, in order. All kept events are scanned.
    pub async fn events_naming(&self, sandbox: SandboxId, text: String) -> Result<Vec<StoredEvent>, Error> {
        self.read(move |connection| column::all(connection, NAMING, (sandbox.as_str(), text.as_str()), read)).await
    }

    /// The number of the last event.
    pub async fn last_event(&self, sandbox: SandboxId) -> Result<Option<u64>, Error> {
        self.read(move |connection| latest(connection, &sandbox)).await
    }
}

pub(crate) fn append(connection: &Connection, sandbox: &SandboxId, events: &[StoredEvent]) -> Result<(), Error> {
    for event in events {
        let params = (sandbox.as_str(), column::count(event.seq), column::millis(event.at), event.body.as_str());
        column::execute(connection, INSERT, params).map_err(|error| error.naming("the sandbox"))?;
    }
    let span = column::one(connection, SPAN, [sandbox.as_str()], |row| column::number_optional(row, "span"))?;
    if span.flatten().is_some_and(|span| span > EVENTS_PER_SANDBOX_MAX) {
        column::execute(connection, DROP_OLDEST, (sandbox.as_str(), column::count(EVENTS_PER_SANDBOX_MAX)))?;
    }
    Ok(())
}

fn latest(connection: &Connection, sandbox: &SandboxId) -> Result<Option<u64>, Error> {
    let latest = column::one(connection, LATEST, [sandbox.as_str()], |row| column::number_optional(row, "latest"))?;
    Ok(latest.flatten())
}

fn read(row: &Row<'_>) -> Result<StoredEvent, Error> {
    Ok(StoredEvent {
        seq: column::number(row, "seq")?,
        at: column::time(row, "at")?,
        body: column::parsed(row, "body_json", JsonText::from_column)?,
    })
}
