//! Restored stores: how a store detects that it is a copy, and what happens to its runs.
//!
//! A run that was open in a backup may have continued in the original store. It would repeat here whatever it did
//! there after the backup. So every open run is blocked until a human has decided.

use rusqlite::Connection;
use saggar_domain::Timestamp;

use crate::column;
use crate::error::Error;
use crate::marker::Marker;
use crate::run::block_all;
use crate::stuck::Turn;

/// Counts openings of the store, and foldings of its log by our own processes.
const OPENS: &str = "opens";
/// Marks the file as a copy, with its time. Set in every backup, until it is first opened.
const COPIED_AT: &str = "copied_at";
/// Marks that the loss of acknowledged writes was accepted, until the store is next opened.
const LOST: &str = "lost_writes";

const GET: &str = "SELECT value FROM meta WHERE key = ?1";
const SET: &str =
    "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
const FORGET: &str = "DELETE FROM meta WHERE key IN (?1, ?2)";

pub(crate) fn mark_copy(connection: &Connection, at: Timestamp) -> Result<(), Error> {
    column::execute(connection, SET, (COPIED_AT, at.as_millis().to_string())).map(|_| ())
}

/// Marks a file as a copy of unknown time, unless it is already marked.
pub(crate) fn mark_restored(connection: &Connection) -> Result<(), Error> {
    match get(connection, COPIED_AT)? {
        Some(_) => Ok(()),
        None => column::execute(connection, SET, (COPIED_AT, "")).map(|_| ()),
    }
}

pub(crate) fn mark_loss(connection: &Connection) -> Result<(), Error> {
    column::execute(connection, SET, (LOST, "1")).map(|_| ())
}

/// How often the store was opened or its log folded; `None` in a store of an early version.
pub(crate) fn counted(connection: &Connection) -> Result<Option<u64>, Error> {
    let count = get(connection, OPENS)?;
    count.map(|text| text.parse().map_err(|_| column::damaged("value"))).transpose()
}

/// Increments the count in one transaction. Returns the new count.
pub(crate) fn count_on(connection: &Connection, turn: &Turn) -> Result<u64, Error> {
    in_transaction(connection, turn, || {
        let next = counted(connection)?.unwrap_or(0) + 1;
        column::execute(connection, SET, (OPENS, next.to_string()))?;
        Ok(next)
    })
}

/// Counts this opening, and blocks every open run if the store is a copy of an earlier state. One transaction.
/// Returns the count.
pub(crate) fn settle(connection: &Connection, turn: &Turn, marker: Option<&Marker>) -> Result<u64, Error> {
    in_transaction(connection, turn, || count(connection, marker))
}

fn in_transaction(
    connection: &Connection,
    turn: &Turn,
    work: impl FnOnce() -> Result<u64, Error>,
) -> Result<u64, Error> {
    turn.begin(connection)?;
    let done = work().and_then(|done| {
        connection.execute_batch("COMMIT")?;
        Ok(done)
    });
    if done.is_err() && !connection.is_autocommit() {
        // The original error is more useful.
        let _ = connection.execute_batch("ROLLBACK");
    }
    done
}

fn count(connection: &Connection, marker: Option<&Marker>) -> Result<u64, Error> {
    let opens = counted(connection)?;
    if let Some(reason) = reason(connection, opens, marker)? {
        let runs = block_all(connection, &reason)?;
        tracing::warn!(runs, reason, "blocked open runs until a human decides");
    }
    let next = opens.unwrap_or(0) + 1;
    column::execute(connection, SET, (OPENS, next.to_string()))?;
    column::execute(connection, FORGET, (COPIED_AT, LOST))?;
    Ok(next)
}

/// Why open runs may have continued elsewhere; `None` if they can't have.
fn reason(connection: &Connection, opens: Option<u64>, marker: Option<&Marker>) -> Result<Option<String>, Error> {
    let what = if let Some(at) = get(connection, COPIED_AT)? {
        match at.parse::<u64>() {
            Ok(at) => format!("the store was restored from a backup of {}", rfc3339(connection, at / 1000)?),
            Err(_) => "the store was restored from a backup".to_owned(),
        }
    } else if get(connection, LOST)?.is_some() {
        "the store lost acknowledged writes, and the loss was accepted".to_owned()
    } else {
        match (opens, marker) {
            // The first count: a new store, or one of an earlier version.
            (None, _) => return Ok(None),
            (Some(opens), Some(marker)) if marker.opens <= opens => return Ok(None),
            (Some(_), Some(_)) => "the database is an older copy than the one that was here".to_owned(),
            (Some(_), None) => "the database was copied here from another data directory".to_owned(),
        }
    };
    Ok(Some(format!("{what}; this run may have continued elsewhere, and would repeat what it did there")))
}

fn get(connection: &Connection, key: &str) -> Result<Option<String>, Error> {
    column::one(connection, GET, [key], |row| column::plain(row, "value"))
}

fn rfc3339(connection: &Connection, seconds: u64) -> Result<String, Error> {
    let text = "SELECT strftime('%Y-%m-%dT%H:%M:%SZ', ?1, 'unixepoch') AS value";
    let found = column::one(connection, text, [column::count(seconds)], |row| column::plain(row, "value"))?;
    Ok(found.unwrap_or_default())
}
