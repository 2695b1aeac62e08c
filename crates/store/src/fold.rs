//! Folding (checkpointing) the log into the database, and counting it.
//!
//! A missing log means lost writes, unless another SQLite program folded it: the last program to close a database folds
//! the log and removes it. To tell these apart, the store increments a count in the database (`opens`) each time it is
//! opened and each time one of our own processes has folded the log. The marker file has a copy of the count. The commit
//! that increments it is in the log, so without the log the database is behind the marker, unless all of it was folded.

use std::cell::Cell;
use std::path::Path;

use rusqlite::hooks::Wal;
use rusqlite::{Connection, OpenFlags};

use crate::error::Error;
use crate::marker::Marker;
use crate::restored;
use crate::stuck::Turn;

/// Log pages (16 MiB) after which the log is checkpointed. A checkpoint waits for the disk twice and writes each
/// changed page once, so a longer log saves writes of pages that change all the time; a shorter one is read faster
/// after a crash.
const LOG_PAGES: i32 = 4_000;

thread_local! {
    static HAS_FOLDED: Cell<bool> = const { Cell::new(false) };
}

/// Folds the log after a commit that made it long. Replaces SQLite's own checkpoints, which can't be observed.
pub(crate) fn fold_when_long(connection: &Connection) {
    connection.wal_hook(Some(|wal: &Wal, pages| {
        if pages >= LOG_PAGES {
            // A later commit tries again. An error would be reported as an error of the commit.
            let _ = wal.checkpoint();
            HAS_FOLDED.set(true);
        }
        Ok(())
    }));
}

/// Increments the count if the last commit on this thread has folded the log.
pub(crate) fn count_if_folded(connection: &Connection, turn: &Turn) {
    if !HAS_FOLDED.take() {
        return;
    }
    let counted = restored::count_on(connection, turn).map_err(std::io::Error::other);
    if let Err(error) = counted.and_then(|count| Marker::opened(count).write(turn.directory())) {
        // The only consequence is that a later loss may go unnoticed.
        tracing::warn!(%error, "can't record that the log was folded");
    }
}

/// Whether the database has everything that was in a missing log: its count is not behind the marker's.
pub(crate) fn is_all_folded(database: &Path, marker: Option<&Marker>) -> bool {
    let Some(marker) = marker else { return false };
    matches!(count_without_log(database), Ok(Some(count)) if count >= marker.opens)
}

/// Reads the count from the database file alone. No file beside it is read or created.
fn count_without_log(database: &Path) -> Result<Option<u64>, Error> {
    let mut uri = String::from("file:");
    for byte in std::os::unix::ffi::OsStrExt::as_bytes(database.as_os_str()) {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => uri.push(char::from(*byte)),
            _ => uri.push_str(&format!("%{byte:02x}")),
        }
    }
    uri.push_str("?immutable=1");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    restored::counted(&Connection::open_with_flags(uri, flags)?)
}
