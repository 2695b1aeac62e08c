//! The queue of runs that wait for sandbox capacity. A queued run occupies no worker; a process that finds free
//! capacity wakes the first of the queue.
//!
//! Projects take turns, those with the fewest sandboxes first; within a project the longest wait goes first. A run
//! keeps its place if another was quicker, and a newcomer queues behind the others.

use rusqlite::Connection;
use saggar_domain::{RunId, Timestamp};

use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

const WANTED: &str = "
    SELECT 1 AS is_wanted FROM run INDEXED BY run_waiting_for_room
    WHERE room_since IS NOT NULL AND state = 'waiting' AND blocked IS NULL AND wake_at > ?1 LIMIT 1";
const GIVE: &str = "
    WITH live AS (SELECT project_id, count(*) AS live FROM sandbox WHERE state <> 'ended' GROUP BY project_id)
    UPDATE run SET wake_at = ?1 WHERE id IN (
        SELECT id FROM run
        WHERE room_since IS NOT NULL AND state = 'waiting' AND holder IS NULL AND blocked IS NULL AND wake_at > ?1
        ORDER BY row_number() OVER (PARTITION BY project_id ORDER BY room_since, id)
            + coalesce((SELECT live FROM live WHERE live.project_id = run.project_id), 0), room_since, id
        LIMIT ?2)";
/// ?1 the run, ?2 since when it counts as waiting if it isn't queued yet.
const AHEAD: &str = "
    WITH live AS (SELECT project_id, count(*) AS live FROM sandbox WHERE state <> 'ended' GROUP BY project_id),
    queue AS (
        SELECT id, project_id, room_since FROM run WHERE room_since IS NOT NULL AND state = 'waiting' AND id <> ?1
        UNION ALL SELECT id, project_id, coalesce(room_since, ?2) FROM run WHERE id = ?1),
    turns AS (
        SELECT id, room_since, row_number() OVER (PARTITION BY project_id ORDER BY room_since, id)
            + coalesce((SELECT live FROM live WHERE live.project_id = queue.project_id), 0) AS turn
        FROM queue)
    SELECT count(*) AS ahead FROM turns
    WHERE (turn, room_since, id) < (SELECT turn, room_since, id FROM turns WHERE id = ?1)";
const UNFINISHED: &str = "SELECT 1 AS is_unfinished FROM run WHERE state <> 'finished' LIMIT 1";
const LIVE: &str = "SELECT count(*) AS live FROM sandbox WHERE state <> 'ended'";

impl Store {
    /// Whether a run is waiting for capacity and has not been woken.
    pub async fn is_room_wanted(&self, now: Timestamp) -> Result<bool, Error> {
        let work = move |connection: &Connection| {
            Ok(column::one(connection, WANTED, [column::millis(now)], |_| Ok(()))?.is_some())
        };
        self.read(work).await
    }

    /// Wakes the first `most` waiting runs, because there is capacity for them. Returns their number.
    pub async fn give_room(&self, now: Timestamp, most: u32) -> Result<usize, Error> {
        let work = move |connection: &Connection| column::execute(connection, GIVE, (column::millis(now), most));
        self.write(Durability::Process, work).await
    }

    /// How many waiting runs come before this one.
    pub async fn runs_ahead(&self, run: RunId, now: Timestamp) -> Result<u64, Error> {
        let work = move |connection: &Connection| {
            let ahead = column::one(connection, AHEAD, (run.as_str(), column::millis(now)), |row| {
                column::number(row, "ahead")
            })?;
            Ok(ahead.unwrap_or(0))
        };
        self.read(work).await
    }

    /// Whether any run of any project has not finished.
    pub async fn has_unfinished_runs(&self) -> Result<bool, Error> {
        let work = |connection: &Connection| Ok(column::one(connection, UNFINISHED, [], |_| Ok(()))?.is_some());
        self.read(work).await
    }

    /// Number of sandboxes that have not ended, over all processes.
    pub async fn live_sandboxes(&self) -> Result<u64, Error> {
        self.read(count_live).await
    }
}

pub(crate) fn count_live(connection: &Connection) -> Result<u64, Error> {
    Ok(column::one(connection, LIVE, [], |row| column::number(row, "live"))?.unwrap_or(0))
}
