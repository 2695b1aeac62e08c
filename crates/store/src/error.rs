//! What can go wrong with stored state, by what the caller can do about it.
//!
//! Outcomes that are part of an operation (a replayed request, a sandbox that has moved on) are not errors: they are in its
//! result. No message here holds a path of the data directory.

use rusqlite::ErrorCode;

/// Why an operation on the store failed. After any of them but [`Error::Stopped`] the store is as usable as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No room: nothing of the operation was written.
    #[error("the disk of the data directory is full")]
    Full,
    /// The file system doesn't take writes.
    #[error("the data directory can't be written")]
    ReadOnly,
    /// Another process held the database for longer than we wait.
    #[error("the store is busy")]
    Busy,
    /// What was read is not what was once written.
    #[error("the store is damaged: {what}")]
    Corrupt { what: String },
    /// Something of that name is there already.
    #[error("{what} is there already")]
    Taken { what: &'static str },
    /// There are as many as there may be.
    #[error("there are too many {what}")]
    TooMany { what: &'static str },
    /// What the row belongs to isn't there.
    #[error("{what} isn't there")]
    Missing { what: &'static str },
    /// The store's thread is gone: after a shutdown, or after a bug.
    #[error("the store has stopped")]
    Stopped,
    /// The random source failed.
    #[error("the system's random source failed")]
    Random,
    /// Anything else that the database says.
    #[error("the store failed: {message}")]
    Failed {
        /// In SQLite's words.
        message: String,
    },
}

impl Error {
    /// What to do next.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Full => {
                "make room on the disk of the data directory; nothing was lost, and writes go on by themselves"
            }
            Self::ReadOnly => {
                "make the data directory writable again; a remount after disk errors is in the kernel's log"
            }
            Self::Busy => "try again; if it stays, another program has the database open",
            Self::Corrupt { .. } => "stop the server, keep the file, and restore the last backup with: saggar restore",
            Self::Taken { .. } => "choose another name",
            Self::TooMany { .. } => "remove what is not needed any more",
            Self::Missing { .. } => "look whether it was deleted in the meantime",
            Self::Stopped => "restart the server; the log says what stopped the store",
            Self::Random => "look at the system's random source; nothing was written",
            Self::Failed { .. } => "look at the server's log",
        }
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }

    /// Gives a failed constraint the name of what it is about.
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
            ffi::SQLITE_CONSTRAINT_FOREIGNKEY => return Self::Missing { what: "what it belongs to" },
            // What SQLite has open when a file system is made read-only fails like this, and not as read-only.
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
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Self::corrupt("the file is not what it should be"),
            // SQLite's own words, without the statement: that could hold values.
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
            // By a file that was open when its disk was made read-only.
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
