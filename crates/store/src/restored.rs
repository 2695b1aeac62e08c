//! A store that was restored: how it knows, and what becomes of its runs.
//!
//! A run that was open in a backup may have gone on where the backup was made. Whatever it did there after the backup it would do again
//! here. So every open run is blocked until a person has decided.

use rusqlite::Connection;
use saggar_domain::Timestamp;

use crate::column;
use crate::error::Error;
use crate::marker::Marker;
use crate::run::block_all;
use crate::stuck::Turn;

/// How often the store was opened, or its log folded by one of our own processes.
const OPENS: &str = "opens";
/// Says that this file is a copy, and when it was made: in every backup, until it is first opened.
const COPIED_AT: &str = "copied_at";
/// Says that acknowledged writes were given up, until the store is next opened.
const LOST: &str = "lost_writes";

const GET: &str = "SELECT value FROM meta WHERE key = ?1";
const SET: &str =
    "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
const FORGET: &str = "DELETE FROM meta WHERE key IN (?1, ?2)";

/// Marks a file as a copy that was made at this time.
pub(crate) fn mark_copy(connection: &Connection, at: Timestamp) -> Result<(), Error> {
    column::execute(connection, SET, (COPIED_AT, at.as_millis().to_string())).map(|_| ())
}

/// Marks a file as a copy of an unknown time, unless it says so itself.
pub(crate) fn mark_restored(connection: &Connection) -> Result<(), Error> {
    match get(connection, COPIED_AT)? {
        Some(_) => Ok(()),
        None => column::execute(connection, SET, (COPIED_AT, "")).map(|_| ()),
    }
}

/// Marks a store as one that lost acknowledged writes.
pub(crate) fn mark_loss(connection: &Connection) -> Result<(), Error> {
    column::execute(connection, SET, (LOST, "1")).map(|_| ())
}

/// How often the store was opened or folded, where it has ever counted that.
pub(crate) fn counted(connection: &Connection) -> Result<Option<u64>, Error> {
    let count = get(connection, OPENS)?;
    count.map(|text| text.parse().map_err(|_| column::damaged("value"))).transpose()
}

/// Counts one more. One transaction. Returns the count.
pub(crate) fn count_on(connection: &Connection, turn: &Turn) -> Result<u64, Error> {
    in_transaction(connection, turn, || {
        let next = counted(connection)?.unwrap_or(0) + 1;
        column::execute(connection, SET, (OPENS, next.to_string()))?;
        Ok(next)
    })
}

/// Counts this opening, and blocks every open run where the store is a copy of an earlier state. One transaction. Returns the count.
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
        // The error that is on its way says more.
        let _ = connection.execute_batch("ROLLBACK");
    }
    done
}

fn count(connection: &Connection, marker: Option<&Marker>) -> Result<u64, Error> {
    let opens = counted(connection)?;
    if let Some(reason) = reason(connection, opens, marker)? {
        let runs = block_all(connection, &reason)?;
        tracing::warn!(runs, reason, "open runs are blocked until a person has decided");
    }
    let next = opens.unwrap_or(0) + 1;
    column::execute(connection, SET, (OPENS, next.to_string()))?;
    column::execute(connection, FORGET, (COPIED_AT, LOST))?;
    Ok(next)
}

/// Why open runs may have gone on elsewhere, if they may.
fn reason(connection: &Connection, opens: Option<u64>, marker: Option<&Marker>) -> Result<Option<String>, Error> {
    let what = if let Some(at) = get(connection, COPIED_AT)? {
        match at.parse::<u64>() {
            Ok(at) => format!("the store was restored from a backup of {}", rfc3339(connection, at / 1000)?),
            Err(_) => "the store was restored from a backup".to_owned(),
        }
    } else if get(connection, LOST)?.is_some() {
        "the store lost acknowledged writes, and somebody accepted that".to_owned()
    } else {
        match (opens, marker) {
            // Counted for the first time: a new store, or one of an earlier version.
            (None, _) => return Ok(None),
            (Some(opens), Some(marker)) if marker.opens <= opens => return Ok(None),
            (Some(_), Some(_)) => "the database is an older copy than the one that was here".to_owned(),
            (Some(_), None) => "the database was copied here from another data directory".to_owned(),
        }
    };
    Ok(Some(format!("{what}; this run may have gone on elsewhere, and would do again what it did there")))
}

fn get(connection: &Connection, key: &str) -> Result<Option<String>, Error> {
    column::one(connection, GET, [key], |row| column::plain(row, "value"))
}

fn rfc3339(connection: &Connection, seconds: u64) -> Result<String, Error> {
    let text = "SELECT strftime('%Y-%m-%dT%H:%M:%SZ', ?1, 'unixepoch') AS value";
    let found = column::one(connection, text, [column::count(seconds)], |row| column::plain(row, "value"))?;
    Ok(found.unwrap_or_default())
}
