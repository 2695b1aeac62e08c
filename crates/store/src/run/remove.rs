//! Removes runs, on request or because they ended long ago.
//!
//! A run is removed with all its descendants. It is marked first, which makes it invisible; its rows are deleted
//! later in bounded steps, so that no write waits long. A run whose history a fork still uses can't be removed before
//! the fork.
//!
//! INVARIANT: a marked run and all its descendants are over. No unmarked run uses the history of a marked one.

use rusqlite::Connection;
use saggar_domain::{ProjectId, RunId, Timestamp};

use super::{blob, get};
use crate::column;
use crate::error::Error;
use crate::meta;
use crate::sandbox::IDEMPOTENCY_RETENTION;
use crate::sandbox_call;
use crate::store::Store;
use crate::writer::Durability;

/// A run and its descendants.
macro_rules! tree {
    ($statement:literal) => {
        concat!(
            "WITH RECURSIVE tree (id) AS (VALUES (?1) UNION SELECT run.id FROM run JOIN tree ON run.child_of = tree.id) ",
            $statement
        )
    };
}

/// A finished run may still have a sandbox, which a worker is about to end.
const BUSY: &str = tree!(
    "SELECT run.id FROM run JOIN tree ON run.id = tree.id
     WHERE run.state <> 'finished' OR run.wake_at IS NOT NULL OR run.holder IS NOT NULL LIMIT 1"
);
const FORK: &str = tree!(
    "SELECT fork.id FROM run AS fork JOIN tree ON fork.parent_id = tree.id
     WHERE fork.removed_at IS NULL AND fork.id NOT IN (SELECT id FROM tree) LIMIT 1"
);
const MARK: &str = tree!("UPDATE run SET removed_at = ?2 WHERE id IN (SELECT id FROM tree)");
const FORGET_TREES_REQUESTS: &str = tree!("DELETE FROM run_request WHERE run_id IN (SELECT id FROM tree)");
/// A run that an idempotency key still refers to stays, because it is the response to a repeated request.
const OLDEST: &str = "
    SELECT id, updated_at FROM run
    WHERE state = 'finished' AND removed_at IS NULL AND child_of IS NULL AND updated_at <= ?1 AND wake_at IS NULL
        AND (updated_at, id) > (?3, ?4)
        AND NOT EXISTS (SELECT 1 FROM run_request WHERE run_id = run.id)
        AND NOT EXISTS (SELECT 1 FROM run AS fork WHERE fork.parent_id = run.id AND fork.removed_at IS NULL)
    ORDER BY updated_at, id LIMIT ?2";
/// The last run that was skipped: the next sweep continues after it.
const PASSED: &str = "runs_passed";
const FORGET_REQUESTS: &str = "
    DELETE FROM run_request WHERE (project_id, key) IN (
        SELECT project_id, key FROM run_request WHERE created_at <= ?1 ORDER BY created_at LIMIT ?2)";
/// Runs that no other row refers to: children before their parents, forks before their originals.
const LEAVES: &str = "
    SELECT id FROM run WHERE removed_at IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM run AS child WHERE child.child_of = run.id)
        AND NOT EXISTS (SELECT 1 FROM run AS fork WHERE fork.parent_id = run.id)
    ORDER BY removed_at, id LIMIT ?1";
const FORGET_JOURNAL: &str = "
    DELETE FROM journal WHERE run_id = ?1 AND seq IN (SELECT seq FROM journal WHERE run_id = ?1 ORDER BY seq LIMIT ?2)";
const FORGET_LETTERS: &str = "DELETE FROM inbox WHERE run_id = ?1";
const FORGET_RUN: &str = "DELETE FROM run WHERE id = ?1";

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is removed, with all its descendants.
    Removed,
    Absent,
    /// This run, itself or a descendant, is not over yet.
    Busy(RunId),
    /// This run started it, and still exists.
    StartedBy(RunId),
    /// This fork uses its history.
    ForkedBy(RunId),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Forgotten {
    pub(crate) runs: u32,
    pub(crate) rows: u32,
    /// Whether there may be more runs that are old enough.
    pub(crate) has_more: bool,
}

impl Store {
    /// Removes a finished run of a project with its descendants. Survives a power cut.
    pub async fn remove_run(&self, project: ProjectId, id: RunId, now: Timestamp) -> Result<Removal, Error> {
        let work = move |connection: &Connection| {
            let Some(run) = get::of_project(connection, &project, &id)? else { return Ok(Removal::Absent) };
            match run.child_of {
                Some((starter, _)) => Ok(Removal::StartedBy(starter)),
                None => mark(connection, &id, now),
            }
        };
        self.write(Durability::Power, work).await
    }
}

/// Marks a run without a parent, with its descendants.
fn mark(connection: &Connection, id: &RunId, now: Timestamp) -> Result<Removal, Error> {
    let first = |sql| column::one(connection, sql, [id.as_str()], |row| column::parsed(row, "id", RunId::parse));
    if let Some(busy) = first(BUSY)? {
        return Ok(Removal::Busy(busy));
    }
    if let Some(fork) = first(FORK)? {
        return Ok(Removal::ForkedBy(fork));
    }
    column::execute(connection, FORGET_TREES_REQUESTS, [id.as_str()])?;
    column::execute(connection, MARK, (id.as_str(), column::millis(now)))?;
    Ok(Removal::Removed)
}

/// Deletes expired idempotency keys of runs. Returns their number.
pub(crate) fn forget_requests(connection: &Connection, now: Timestamp, rows_max: u32) -> Result<u32, Error> {
    let oldest = column::millis(now.before(IDEMPOTENCY_RETENTION));
    Ok(column::rows(column::execute(connection, FORGET_REQUESTS, (oldest, rows_max))?))
}

/// Marks runs that ended before that time and deletes rows of marked ones, up to a number of rows.
pub(crate) fn forget(
    connection: &Connection,
    now: Timestamp,
    ended_before: Timestamp,
    rows_max: u32,
) -> Result<Forgotten, Error> {
    let id_of = |row: &rusqlite::Row<'_>| column::parsed(row, "id", RunId::parse);
    let has_more = mark_oldest(connection, now, ended_before, rows_max)?;
    let (mut runs, mut room) = (0, rows_max);
    loop {
        let leaves = column::all(connection, LEAVES, [room], id_of)?;
        if leaves.is_empty() || room == 0 {
            return Ok(Forgotten { runs, rows: rows_max - room, has_more });
        }
        for id in leaves {
            room -= column::rows(column::execute(connection, FORGET_JOURNAL, (id.as_str(), room))?);
            if room == 0 {
                break;
            }
            blob::let_go(connection, &id, now)?;
            column::execute(connection, FORGET_LETTERS, [id.as_str()])?;
            sandbox_call::forget(connection, &id)?;
            room -= column::rows(column::execute(connection, FORGET_RUN, [id.as_str()])?);
            runs += 1;
            if room == 0 {
                break;
            }
        }
    }
}

/// Marks runs that ended before that time. A run that can't be removed yet, because a descendant is forked or not over, is
/// skipped, and tried again after all others. Returns whether there may be more to mark.
fn mark_oldest(connection: &Connection, now: Timestamp, ended_before: Timestamp, rows_max: u32) -> Result<bool, Error> {
    let before = column::one(connection, meta::GET, [PASSED], |row| column::plain::<String>(row, "value"))?;
    let (at, id) = before.as_deref().and_then(|text| text.split_once(' ')).unwrap_or(("0", ""));
    let after = (at.parse::<i64>().unwrap_or(0), id);
    let params = (column::millis(ended_before), rows_max, after.0, after.1);
    let oldest = column::all(connection, OLDEST, params, |row| {
        Ok((column::parsed(row, "id", RunId::parse)?, column::plain::<i64>(row, "updated_at")?))
    })?;
    let mut passed = None;
    for (id, at) in &oldest {
        if mark(connection, id, now)? != Removal::Removed {
            passed = Some(format!("{at} {id}"));
        }
    }
    let is_all = u32::try_from(oldest.len()).is_ok_and(|found| found < rows_max);
    match passed {
        Some(passed) if !is_all => column::execute(connection, meta::SET, (PASSED, passed))?,
        _ if is_all && before.is_some() => column::execute(connection, meta::FORGET, [PASSED])?,
        _ => 0,
    };
    Ok(!is_all && rows_max > 0)
}
