//! The queue of runs that wait for room for a sandbox. A run in it holds no worker; whoever sees that there is room wakes the first of it.
//!
//! Projects take turns, those with the fewest sandboxes first; within a project the longest wait goes first. A run keeps its place while
//! it tries and finds that another was quicker, and a newcomer waits behind those that were there before.

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
/// ?1 which run, ?2 since when it counts as waiting if it has not waited yet.
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
const LIVE: &str = "SELECT count(*) AS live FROM sandbox WHERE state <> 'ended'";

impl Store {
    /// Whether a run waits for room that nobody has given it.
    pub async fn is_room_wanted(&self, now: Timestamp) -> Result<bool, Error> {
        let work = move |connection: &Connection| {
            Ok(column::one(connection, WANTED, [column::millis(now)], |_| Ok(()))?.is_some())
        };
        self.read(work).await
    }

    /// There is room for so many: the first of those that wait are due. Says how many.
    pub async fn give_room(&self, now: Timestamp, most: u32) -> Result<usize, Error> {
        let work = move |connection: &Connection| column::execute(connection, GIVE, (column::millis(now), most));
        self.write(Durability::Process, work).await
    }

    /// How many runs that wait for room come before this one.
    pub async fn runs_ahead(&self, run: RunId, now: Timestamp) -> Result<u64, Error> {
        let work = move |connection: &Connection| {
            let ahead = column::one(connection, AHEAD, (run.as_str(), column::millis(now)), |row| {
                column::number(row, "ahead")
            })?;
            Ok(ahead.unwrap_or(0))
        };
        self.read(work).await
    }

    /// How many sandboxes there are that have not ended, whoever made them.
    pub async fn live_sandboxes(&self) -> Result<u64, Error> {
        self.read(count_live).await
    }
}

pub(crate) fn count_live(connection: &Connection) -> Result<u64, Error> {
    Ok(column::one(connection, LIVE, [], |row| column::number(row, "live"))?.unwrap_or(0))
}
