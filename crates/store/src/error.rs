//! Errors of the store, grouped by what the caller can do about them.
//!
//! Expected outcomes of an operation (a replayed request, a sandbox that has changed state) are not errors: they are
//! in its result. No message here contains a path of the data directory.

use rusqlite::ErrorCode;

/// Why an operation on the store failed. After any error except [`Error::Stopped`] the store stays usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The disk is full: nothing of the operation was written.
    #[error("the disk of the data directory is full")]
    Full,
    /// The file system refuses writes.
    #[error("the data directory is not writable")]
    ReadOnly,
    /// Another process held the database for longer than the busy timeout.
    #[error("the store is busy")]
    Busy,
    /// Stored data has changed since it was written.
    #[error("the store is damaged: {what}")]
    Corrupt { what: String },
    #[error("{what} already exists")]
    Taken { what: &'static str },
    /// A named bound is reached.
    #[error("there are too many {what}")]
    TooMany { what: &'static str },
    /// The row that this one refers to doesn't exist.
    #[error("{what} isn't there")]
    Missing { what: &'static str },
    /// The store's thread has ended, after a shutdown or because of a bug.
    #[error("the store has stopped")]
    Stopped,
    #[error("the system's random source failed")]
    Random,
    /// Any other error of the database.
    #[error("the store failed: {message}")]
    Failed {
        /// SQLite's message.
        message: String,
    },
}

impl Error {
    pub fn help(&self) -> &'static str {
        match self {
            Self::Full => {
                "free space on the disk of the data directory; nothing was lost, and writes resume without a restart"
            }
            Self::ReadOnly => {
                "make the data directory writable again; after disk errors the kernel's log shows a read-only remount"
            }
            Self::Busy => "try again; if it persists, another program has the database open",
            Self::Corrupt { .. } => "stop the server, keep the file, and restore the last backup with: saggar restore",
            Self::Taken { .. } => "choose another name",
            Self::TooMany { .. } => "remove some that are no longer needed",
            Self::Missing { .. } => "check whether it was deleted in the meantime",
            Self::Stopped => "restart the server; its log shows what stopped the store",
            Self::Random => "check the system's random source; nothing was written",
            Self::Failed { .. } => "check the server's log",
        }
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }

    /// Names the object of a failed constraint.
    pub(crate) fn naming(self, what: &'static str) -> Self {
        match self {
            Self::Taken { .. } => Self::Taken { what },
            Self::Missing { .. } => Self::Missing { what },
            other => other,
        }
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ffi;
        let rusqlite::Error::SqliteFailure(failure, _) = &error else {
            return match error {
                rusqlite::Error::InvalidColumnType(_, name, kind) => {
                    Self::corrupt(format!("column {name} holds {kind}"))
                }
                rusqlite::Error::FromSqlConversionFailure(index, _, _)
                | rusqlite::Error::IntegralValueOutOfRange(index, _) => {
                    Self::corrupt(format!("column {index} is out of range"))
                }
                other => Self::Failed { message: other.to_string() },
            };
        };
        match failure.extended_code {
            ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY => return Self::Taken { what: "a row" },
            ffi::SQLITE_CONSTRAINT_FOREIGNKEY => return Self::Missing { what: "the object it belongs to" },
            // When a file system becomes read-only, files that SQLite has open fail like this and not as read-only.
            ffi::SQLITE_IOERR_WRITE
            | ffi::SQLITE_IOERR_FSYNC
            | ffi::SQLITE_IOERR_DIR_FSYNC
            | ffi::SQLITE_IOERR_TRUNCATE => return Self::ReadOnly,
            _ => {}
        }
        match failure.code {
            ErrorCode::DiskFull => Self::Full,
            ErrorCode::ReadOnly => Self::ReadOnly,
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Self::Busy,
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Self::corrupt("the file is not a valid database"),
            // SQLite's own message, without the statement, which could contain values.
            _ => Self::Failed { message: failure.to_string() },
        }
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn a_disk_that_takes_no_writes_is_told_as_such_however_it_is_met() {
        let cases = [
            (ffi::SQLITE_FULL, Error::Full),
            (ffi::SQLITE_READONLY, Error::ReadOnly),
            // A file that was open when its disk became read-only.
            (ffi::SQLITE_IOERR_WRITE, Error::ReadOnly),
            (ffi::SQLITE_IOERR_FSYNC, Error::ReadOnly),
            (ffi::SQLITE_IOERR_TRUNCATE, Error::ReadOnly),
            (ffi::SQLITE_BUSY, Error::Busy),
        ];
        for (code, expected) in cases {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(Error::from(error), expected, "{code}");
        }
        let read = rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_IOERR_READ), None);
        assert!(matches!(Error::from(read), Error::Failed { .. }));
    }
}
