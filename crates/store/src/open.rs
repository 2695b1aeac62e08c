//! Opening: lock, look, migrate, connect. A file that isn't ours, is damaged or is newer than us is refused and left as it is.

use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use saggar_domain::{Code, Problem};

use crate::error::Error;
use crate::fold::{fold_when_long, is_all_folded};
use crate::lock::{Lock, LockError};
use crate::marker::{self, Marker};
use crate::migrate::{self, MigrateError};
use crate::readers::READERS;
use crate::restored;
use crate::stuck::{Turn, is_any_worker_alive, wait_for_turn};
use crate::wal::{self, Left, Verdict};
use crate::writer::Durability;

/// The database, in the data directory.
pub(crate) const DATABASE: &str = "saggar.db";
/// The lock beside it.
pub(crate) const LOCK: &str = "saggar.lock";
/// Made by a server once it has opened its store; so where it is, there was one.
const SIGNING_KEY: &str = "signing.key";
/// What SQLite's log begins with.
const LOG_HEADER_BYTES: u64 = 32;
/// How long to wait for another process that has the database: a backup, or a person with a shell.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Statements kept ready on each connection: about as many as there are.
const STATEMENTS_MAX: usize = 64;
/// The log is cut back to this when it has been folded into the file.
const LOG_BYTES_MAX: i64 = 64 << 20;
/// Up to this size the whole file is looked through at each start (a fraction of a second); above, damage is met where it is read.
const CHECKED_BYTES_MAX: u64 = 64 << 20;

/// How to hold the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// What every acknowledged write survives at least; some survive more.
    pub durability: Durability,
}

/// Why a store can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("the data directory is in use by {}", holder(*.pid))]
    Locked {
        /// Which, if that can be told.
        pid: Option<u32>,
    },
    /// The file isn't a database, isn't whole, or isn't one of ours.
    #[error("the store in the data directory {what}")]
    Damaged {
        /// In what way.
        what: String,
    },
    /// What was committed since the last checkpoint is not all there.
    #[error("acknowledged writes are lost: the log of the store in the data directory {what}")]
    LogDamaged {
        /// In what way.
        what: String,
    },
    /// There was a store, and it isn't there.
    #[error("the data directory has had a store, and its database {what}")]
    Gone {
        /// Missing, or empty.
        what: &'static str,
    },
    /// Written by a later version.
    #[error("the store has schema version {found}, and this program knows up to {known}")]
    Newer { found: u32, known: u32 },
    /// Not brought to our version by its server.
    #[error("the store has schema version {found}, and this program needs {known}")]
    Older { found: u32, known: u32 },
    /// To be brought to our version, while a process of another version works in it.
    #[error(
        "the store has schema version {found}, and a worker that knows no other has it open: it was not brought to version {known}"
    )]
    OldWorker { found: u32, known: u32 },
    /// The directory or the file can't be used.
    #[error("the store can't be opened: {0}")]
    Storage(#[from] Error),
    /// The same, by the operating system.
    #[error("the store can't be opened: {}", .0.kind())]
    Io(#[source] std::io::Error),
}

impl OpenError {
    /// What to do next.
    pub fn help(&self) -> String {
        match self {
            Self::Locked { .. } => "stop that process, or ask it: a running server does everything over its API".into(),
            Self::Damaged { .. } => {
                format!("nothing was changed: move {DATABASE} away and restore the last backup with: saggar restore")
            }
            Self::LogDamaged { .. } => format!(
                "nothing was changed: keep a copy of {DATABASE} and {DATABASE}-wal, then restore the last backup with: saggar restore; or go on without the lost writes with: saggar check --accept-loss"
            ),
            Self::Gone { .. } => format!(
                "nothing was changed: put {DATABASE} back, or remove an empty one and restore the last backup with: saggar restore; to begin anew, name an empty data directory"
            ),
            Self::Newer { .. } => "use the version of saggar that wrote it, or a later one".into(),
            Self::Older { .. } => "start the server of this version first: it brings the store to its own".into(),
            Self::OldWorker { .. } => {
                "nothing was changed: stop every `saggar worker` of this data directory, start the server, then start workers of its version".into()
            }
            Self::Storage(error) => error.help().into(),
            Self::Io(_) => "name a directory that is yours alone (mode 0700) on a disk that takes writes".into(),
        }
    }

    pub(crate) fn thread(error: std::io::Error) -> Self {
        Self::Io(error)
    }

    /// A directory or file that can't be made, by what is in the way.
    fn at_file(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::ReadOnlyFilesystem | std::io::ErrorKind::PermissionDenied => {
                Self::Storage(Error::ReadOnly)
            }
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::Storage(Error::Full),
            _ => Self::Io(error),
        }
    }
}

impl From<OpenError> for Problem {
    fn from(error: OpenError) -> Self {
        Self::new(Code::DataDirectory, error.to_string(), error.help())
    }
}

impl From<MigrateError> for OpenError {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Newer { found, known } => Self::Newer { found, known },
            MigrateError::Foreign => Self::Damaged { what: "belongs to another program".into() },
            MigrateError::Storage(error) => Self::from_storage(error),
        }
    }
}

impl OpenError {
    pub(crate) fn from_storage(error: Error) -> Self {
        match error {
            Error::Corrupt { what } => Self::Damaged { what: format!("is damaged: {what}") },
            other => Self::Storage(other),
        }
    }
}

/// Everything an open store holds.
pub(crate) struct Opened {
    /// Absent in a process that has joined another.
    pub(crate) lock: Option<Lock>,
    pub(crate) directory: PathBuf,
    pub(crate) writer: Connection,
    pub(crate) readers: Vec<Connection>,
}

pub(crate) fn open(directory: &Path) -> Result<Opened, OpenError> {
    let lock = lock(directory)?;
    let path = database_in(directory);
    let marker = Marker::read(directory).map_err(OpenError::at_file)?;
    check_there(directory, marker.as_ref())?;
    check_log(directory)?;
    make_private(&path).and_then(|()| sync_directory(directory)).map_err(OpenError::at_file)?;
    let mut writer = connect_to_write(&path).map_err(OpenError::from_storage)?;
    // Before anything is changed: the mode of the journal is written into the file.
    let found = check_before(&writer, &path)?;
    if found != 0 && found != migrate::known() && is_any_worker_alive(directory).map_err(OpenError::at_file)? {
        return Err(OpenError::OldWorker { found, known: migrate::known() });
    }
    settle(&writer).map_err(OpenError::from_storage)?;
    migrate::migrate(&mut writer)?;
    if marker.is_none() && restored::counted(&writer).map_err(OpenError::from_storage)?.is_none() {
        // From here on the marker is there before the store counts: a kill in between is not taken for a copy.
        Marker::opened(0).write(directory).map_err(OpenError::at_file)?;
    }
    let opens = restored::settle(&writer, &Turn::new(directory), marker.as_ref()).map_err(OpenError::from_storage)?;
    Marker::opened(opens).write(directory).map_err(OpenError::at_file)?;
    marker::expect_log(directory).map_err(OpenError::at_file)?;
    let readers =
        (0..READERS).map(|_| connect_to_read(&path)).collect::<Result<_, _>>().map_err(OpenError::from_storage)?;
    Ok(Opened { lock: Some(lock), directory: directory.to_owned(), writer, readers })
}

/// Opens beside the process that has the lock. Changes nothing: a file that isn't at our version is not for us to migrate.
pub(crate) fn join(directory: &Path) -> Result<Opened, OpenError> {
    let path = database_in(directory);
    check_log(directory)?;
    let writer = connect_to_write(&path).map_err(OpenError::from_storage)?;
    let found = migrate::check_version(&writer)?;
    if found != migrate::known() {
        return Err(OpenError::Older { found, known: migrate::known() });
    }
    settle(&writer).map_err(OpenError::from_storage)?;
    let readers =
        (0..READERS).map(|_| connect_to_read(&path)).collect::<Result<_, _>>().map_err(OpenError::from_storage)?;
    Ok(Opened { lock: None, directory: directory.to_owned(), writer, readers })
}

/// Makes the directory if it isn't there, and keeps other processes out.
pub(crate) fn lock(directory: &Path) -> Result<Lock, OpenError> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(OpenError::at_file)?;
    Lock::take(&directory.join(LOCK)).map_err(|error| match error {
        LockError::Held(pid) => OpenError::Locked { pid },
        LockError::Io(error) => OpenError::at_file(error),
    })
}

pub(crate) fn database_in(directory: &Path) -> PathBuf {
    directory.join(DATABASE)
}

/// A connection that can't write, not even by mistake.
pub(crate) fn connect_to_read(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    Ok(connection)
}

fn connect_to_write(path: &Path) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_handler(Some(wait_for_turn))?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok(connection)
}

/// A database that was there and isn't, or is empty, is not made anew: that would pass for a store in which nothing has ever happened.
fn check_there(directory: &Path, marker: Option<&Marker>) -> Result<(), OpenError> {
    let len = |name: &str| match std::fs::metadata(directory.join(name)) {
        Ok(found) => Ok(Some(found.len())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(OpenError::at_file(error)),
    };
    let what = match len(DATABASE)? {
        None => "is missing",
        Some(0) => "is empty",
        Some(_) => return Ok(()),
    };
    let had_one = marker.is_some()
        || len(SIGNING_KEY)?.is_some()
        // The log of a store whose making was broken off has no frames in it.
        || len(&format!("{DATABASE}-wal"))?.is_some_and(|len| len > LOG_HEADER_BYTES);
    if had_one { Err(OpenError::Gone { what }) } else { Ok(()) }
}

/// Before SQLite reads the log: it takes damage for a write that a crash cut off, and forgets what comes after.
pub(crate) fn check_log(directory: &Path) -> Result<(), OpenError> {
    let path = database_in(directory);
    if !path.exists() {
        return Ok(());
    }
    let damaged = |what: String| Err(OpenError::LogDamaged { what });
    // Asked before the log is looked for: whoever closes the store removes the log last.
    let is_expected = marker::is_log_expected(directory);
    let marker = Marker::read(directory).map_err(OpenError::at_file)?;
    if is_expected && !wal::is_there(&path).map_err(OpenError::at_file)? {
        // Another SQLite program that folds the log takes the index away, too.
        let is_folded = !wal::beside(&path, "-shm").exists() && is_all_folded(&path, marker.as_ref());
        return if is_folded { Ok(()) } else { damaged("is missing".into()) };
    }
    let left = if marker.is_some_and(|marker| marker.is_of_this_boot()) { Left::SameBoot } else { Left::Unknown };
    match wal::look(&path, left).map_err(OpenError::at_file)? {
        Verdict::Whole => Ok(()),
        Verdict::Damaged { frame: 0 } => damaged("doesn't begin as one".into()),
        Verdict::Damaged { frame } => damaged(format!("is damaged at frame {frame}, and more was committed after it")),
    }
}

fn check_before(connection: &Connection, path: &Path) -> Result<u32, OpenError> {
    let version = migrate::check_version(connection)?;
    let size = std::fs::metadata(path).map_err(OpenError::at_file)?.len();
    if size > CHECKED_BYTES_MAX {
        return Ok(version);
    }
    let found: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(|error| OpenError::from_storage(error.into()))?;
    if found == "ok" { Ok(version) } else { Err(OpenError::Damaged { what: format!("is damaged: {found}") }) }
}

fn settle(connection: &Connection) -> Result<(), Error> {
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(Error::Failed { message: format!("the file system only allows journal mode {mode}") });
    }
    connection.pragma_update(None, "journal_size_limit", LOG_BYTES_MAX)?;
    fold_when_long(connection);
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    Ok(())
}

/// SQLite gives its log and index the mode of the database; so that must be private from its first moment.
fn make_private(path: &Path) -> std::io::Result<()> {
    File::options().read(true).append(true).create(true).mode(0o600).open(path).map(drop)
}

/// A write that survives a power cut is of no use in a file whose name doesn't.
fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

fn holder(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("process {pid}"),
        None => "another process".into(),
    }
}
