//! Retention: deletes sandboxes and runs that ended long ago, with everything that belongs to them, and expired
//! idempotency keys.
//!
//! One sweep deletes a bounded number of rows, so that no write waits long. A caller that wants everything deleted
//! repeats it while there is more.

use std::num::NonZeroU32;
use std::time::Duration;

use rusqlite::Connection;
use saggar_domain::{SandboxId, Timestamp};

use crate::column;
use crate::error::Error;
use crate::run;
use crate::sandbox::IDEMPOTENCY_RETENTION;
use crate::store::Store;
use crate::writer::Durability;

/// Default maximum of rows per sweep: a few milliseconds of the writer.
const ROWS_MAX: NonZeroU32 = NonZeroU32::new(1_000).expect("it is not zero");
/// Default retention of an ended sandbox: a week.
const ENDED_RETENTION: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Default retention of a finished run: thirty days.
const RUNS_RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);

const FORGET_KEYS: &str = "
    DELETE FROM idempotency WHERE (project_id, key) IN (
        SELECT project_id, key FROM idempotency WHERE created_at <= ?1 ORDER BY created_at LIMIT ?2)";
/// A sandbox that an idempotency key still refers to stays, because it is the response to a repeated request.
const OLDEST_ENDED: &str = "
    SELECT id FROM sandbox WHERE state = 'ended' AND ended_at <= ?1
        AND NOT EXISTS (SELECT 1 FROM idempotency WHERE sandbox_id = sandbox.id)
    ORDER BY ended_at, id LIMIT ?2";
const FORGET_EVENTS: &str = "
    DELETE FROM event WHERE sandbox_id = ?1 AND seq IN (SELECT seq FROM event WHERE sandbox_id = ?1 ORDER BY seq LIMIT ?2)";
const FORGET_DECISIONS: &str = "
    DELETE FROM decision WHERE sandbox_id = ?1
        AND seq IN (SELECT seq FROM decision WHERE sandbox_id = ?1 ORDER BY seq LIMIT ?2)";
const FORGET_TRAFFIC: &str = "
    DELETE FROM traffic WHERE sandbox_id = ?1
        AND (host, port) IN (SELECT host, port FROM traffic WHERE sandbox_id = ?1 ORDER BY host, port LIMIT ?2)";
const FORGET_EXECS: &str = "
    DELETE FROM exec WHERE id IN (SELECT id FROM exec WHERE sandbox_id = ?1 LIMIT ?2)";
const FORGET_SANDBOX: &str = "DELETE FROM sandbox WHERE id = ?1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How long an ended sandbox is kept.
    pub ended: Duration,
    /// How long a finished run is kept.
    pub runs: Duration,
    /// Maximum number of rows that one sweep deletes.
    pub rows_max: NonZeroU32,
}

impl Default for Retention {
    fn default() -> Self {
        Self { ended: ENDED_RETENTION, runs: RUNS_RETENTION, rows_max: ROWS_MAX }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of deleted sandboxes.
    pub sandboxes: u32,
    /// Number of deleted runs.
    pub runs: u32,
    /// Number of deleted rows of any kind.
    pub rows: u32,
    /// Whether the bound was reached, so that there may be more.
    pub has_more: bool,
}

impl Store {
    /// Deletes expired rows, up to a bound.
    pub async fn sweep(&self, now: Timestamp, retention: Retention) -> Result<Swept, Error> {
        self.write(Durability::Process, move |connection| sweep(connection, now, retention)).await
    }
}

fn sweep(connection: &Connection, now: Timestamp, retention: Retention) -> Result<Swept, Error> {
    let rows_max = retention.rows_max.get();
    let mut room = rows_max;
    let mut sandboxes = 0;
    let keys_from = column::millis(now.before(IDEMPOTENCY_RETENTION));
    room -= column::rows(column::execute(connection, FORGET_KEYS, (keys_from, room))?);
    // Each takes at least one row, its own.
    for id in oldest_ended(connection, now.before(retention.ended), room)? {
        for part in [FORGET_EVENTS, FORGET_DECISIONS, FORGET_TRAFFIC, FORGET_EXECS] {
            room -= column::rows(column::execute(connection, part, (id.as_str(), room))?);
        }
        // If the bound is reached, rows may still refer to it; it is deleted next time.
        if room == 0 {
            break;
        }
        room -= column::rows(column::execute(connection, FORGET_SANDBOX, [id.as_str()])?);
        sandboxes += 1;
    }
    room -= run::forget_requests(connection, now, room)?;
    let forgotten = run::forget(connection, now, now.before(retention.runs), room)?;
    room -= forgotten.rows;
    room -= run::forget_loose(connection, now, room)?;
    let has_more = room == 0 || forgotten.has_more;
    Ok(Swept { sandboxes, runs: forgotten.runs, rows: rows_max - room, has_more })
}

fn oldest_ended(connection: &Connection, at_most: Timestamp, limit: u32) -> Result<Vec<SandboxId>, Error> {
    column::all(connection, OLDEST_ENDED, (column::millis(at_most), limit), |row| {
        column::parsed(row, "id", SandboxId::parse)
    })
}
