//! Folding the log back into the database, and counting that.
//!
//! A log that went missing is a loss, unless another SQLite program folded it: whoever closes a database last does, and removes the log. To
//! tell the two apart, the store counts in the database (`opens`) each time that it is opened and each time that one of our own processes
//! has folded the log, and the marker beside it has the count. The commit that counts is in the log. So without the log the database is behind
//! the marker, unless somebody has folded the whole of it.

use std::cell::Cell;
use std::path::Path;

use rusqlite::hooks::Wal;
use rusqlite::{Connection, OpenFlags};

use crate::error::Error;
use crate::marker::Marker;
use crate::restored;
use crate::stuck::Turn;

/// Pages of log (16 MiB) after which it is folded back into the file. That waits for the disk twice and writes each page that
/// changed once, so a longer log spares the pages that change all the time; a shorter one is read faster after a crash.
const LOG_PAGES: i32 = 4_000;

thread_local! {
    static HAS_FOLDED: Cell<bool> = const { Cell::new(false) };
}

/// Has the log folded whenever it is long. In place of SQLite's own way to do that, which tells nobody.
pub(crate) fn fold_when_long(connection: &Connection) {
    connection.wal_hook(Some(|wal: &Wal, pages| {
        if pages >= LOG_PAGES {
            // What can't be folded now is after a later commit. An error would be taken for one of the commit.
            let _ = wal.checkpoint();
            HAS_FOLDED.set(true);
        }
        Ok(())
    }));
}

/// Counts, where the last commit on this thread has folded the log.
pub(crate) fn count_if_folded(connection: &Connection, turn: &Turn) {
    if !HAS_FOLDED.take() {
        return;
    }
    let counted = restored::count_on(connection, turn).map_err(std::io::Error::other);
    if let Err(error) = counted.and_then(|count| Marker::opened(count).write(turn.directory())) {
        // All that is lost is how exactly a later loss can be told.
        tracing::warn!(%error, "that the log was folded can't be written down");
    }
}

/// Whether all of a log that isn't there is in the database: it has counted as far as the marker says.
pub(crate) fn is_all_folded(database: &Path, marker: Option<&Marker>) -> bool {
    let Some(marker) = marker else { return false };
    matches!(count_without_log(database), Ok(Some(count)) if count >= marker.opens)
}

/// What the database itself says. Nothing beside it is read or made.
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
