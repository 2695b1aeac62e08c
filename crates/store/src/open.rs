//! Opening a store: lock, verify, migrate, connect. A file that is foreign, damaged or newer is refused and left
//! unchanged.

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

/// File name of the database in the data directory.
pub(crate) const DATABASE: &str = "saggar.db";
/// File name of the lock.
pub(crate) const LOCK: &str = "saggar.lock";
/// A server creates it after it has opened its store, so its presence proves that there was a store.
const SIGNING_KEY: &str = "signing.key";
/// Size of the header of SQLite's log.
const LOG_HEADER_BYTES: u64 = 32;
/// How long to wait for another process that uses the database, such as a backup or an operator's shell.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Prepared statements cached per connection: about as many as there are.
const STATEMENTS_MAX: usize = 64;
/// The log is truncated to this size after a checkpoint.
const LOG_BYTES_MAX: i64 = 64 << 20;
/// Up to this size the whole file is verified at each start (a fraction of a second); larger files report damage when
/// it is read.
const CHECKED_BYTES_MAX: u64 = 64 << 20;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The minimum durability of every acknowledged write; some writes are more durable.
    pub durability: Durability,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the data directory is in use by {}", holder(*.pid))]
    Locked {
        /// Its pid, if known.
        pid: Option<u32>,
    },
    /// The file isn't a database, is incomplete, or isn't ours.
    #[error("the store in the data directory {what}")]
    Damaged { what: String },
    /// Writes committed since the last checkpoint are missing.
    #[error("acknowledged writes are lost: the log of the store in the data directory {what}")]
    LogDamaged { what: String },
    /// No server has used the directory yet, or it doesn't exist.
    #[error("the data directory has no store")]
    NoStore,
    /// The data directory had a store before.
    #[error("the data directory had a store before, but its database {what}")]
    Gone {
        /// Missing, or empty.
        what: &'static str,
    },
    #[error("the store has schema version {found}, and this program knows up to {known}")]
    Newer { found: u32, known: u32 },
    /// The server has not migrated it to our version yet.
    #[error("the store has schema version {found}, and this program needs {known}")]
    Older { found: u32, known: u32 },
    /// The store must be migrated, and a worker of the earlier version is running.
    #[error(
        "the store has schema version {found} and can't be migrated to {known} while a worker of the earlier version is running"
    )]
    OldWorker { found: u32, known: u32 },
    /// The directory or the file can't be used.
    #[error("the store can't be opened: {0}")]
    Storage(#[from] Error),
    /// The same, as reported by the operating system.
    #[error("the store can't be opened: {}", .0.kind())]
    Io(#[source] std::io::Error),
}

impl OpenError {
    pub fn help(&self) -> String {
        match self {
            Self::Locked { .. } => {
                "stop that process, or use its API: leave out --data-dir, and set SAGGAR_URL and SAGGAR_API_KEY".into()
            }
            Self::Damaged { .. } => {
                format!("nothing was changed: move {DATABASE} away and restore the last backup with: saggar restore")
            }
            Self::LogDamaged { .. } => format!(
                "nothing was changed: keep a copy of {DATABASE} and {DATABASE}-wal, then restore the last backup with: saggar restore; or continue without the lost writes with: saggar check --accept-loss"
            ),
            Self::Gone { .. } => format!(
                "nothing was changed: put {DATABASE} back, or remove an empty one and restore the last backup with: saggar restore; to start from scratch, name an empty data directory"
            ),
            Self::NoStore => "name the data directory of a server that has been started before".into(),
            Self::Newer { .. } => "use the version of saggar that wrote it, or a later one".into(),
            Self::Older { .. } => "start the server of this version first: it migrates the store".into(),
            Self::OldWorker { .. } => {
                "nothing was changed: stop every `saggar worker` of this data directory, start the server, then start workers of its version".into()
            }
            Self::Storage(error) => error.help().into(),
            Self::Io(_) => "name a directory of your own (mode 0700) on a writable disk".into(),
        }
    }

    pub(crate) fn thread(error: std::io::Error) -> Self {
        Self::Io(error)
    }

    /// An error that a directory or file can't be created, classified by its cause.
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

pub(crate) struct Opened {
    /// `None` in a process that has joined another.
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
    // Before anything is changed: setting the journal mode writes to the file.
    let found = check_before(&writer, &path)?;
    if found != 0 && found != migrate::known() && is_any_worker_alive(directory).map_err(OpenError::at_file)? {
        return Err(OpenError::OldWorker { found, known: migrate::known() });
    }
    settle(&writer).map_err(OpenError::from_storage)?;
    migrate::migrate(&mut writer)?;
    if marker.is_none() && restored::counted(&writer).map_err(OpenError::from_storage)?.is_none() {
        // The marker must exist before the store counts this opening, so that a kill in between isn't mistaken for a
        // copied store.
        Marker::opened(0).write(directory).map_err(OpenError::at_file)?;
    }
    let opens = restored::settle(&writer, &Turn::new(directory), marker.as_ref()).map_err(OpenError::from_storage)?;
    Marker::opened(opens).write(directory).map_err(OpenError::at_file)?;
    marker::expect_log(directory).map_err(OpenError::at_file)?;
    let readers =
        (0..READERS).map(|_| connect_to_read(&path)).collect::<Result<_, _>>().map_err(OpenError::from_storage)?;
    Ok(Opened { lock: Some(lock), directory: directory.to_owned(), writer, readers })
}

/// Opens beside the process that has the lock. Changes nothing: migrating a file of another version is the lock
/// holder's task.
pub(crate) fn join(directory: &Path) -> Result<Opened, OpenError> {
    let path = database_in(directory);
    expect_store(directory)?;
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

/// Creates the directory if missing, and takes the lock.
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

/// For a process that never creates a store. Changes nothing.
pub(crate) fn expect_store(directory: &Path) -> Result<(), OpenError> {
    let marker = Marker::read(directory).map_err(OpenError::at_file)?;
    check_there(directory, marker.as_ref())?;
    let is_there = std::fs::metadata(database_in(directory)).is_ok_and(|found| found.len() > 0);
    if is_there { Ok(()) } else { Err(OpenError::NoStore) }
}

/// A database that has disappeared or is empty is not recreated: it would look like a store in which nothing has ever
/// happened.
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
        // The log of a store whose creation was interrupted has no frames.
        || len(&format!("{DATABASE}-wal"))?.is_some_and(|len| len > LOG_HEADER_BYTES);
    if had_one { Err(OpenError::Gone { what }) } else { Ok(()) }
}

/// Runs before SQLite reads the log: SQLite takes damage for a write that a crash cut off, and discards everything
/// after it.
pub(crate) fn check_log(directory: &Path) -> Result<(), OpenError> {
    let path = database_in(directory);
    if !path.exists() {
        return Ok(());
    }
    let damaged = |what: String| Err(OpenError::LogDamaged { what });
    // Checked before the log is looked for, because a closing store removes the log last.
    let is_expected = marker::is_log_expected(directory);
    let marker = Marker::read(directory).map_err(OpenError::at_file)?;
    if is_expected && !wal::is_there(&path).map_err(OpenError::at_file)? {
        // A SQLite program that merges the log into the database removes the index as well.
        let is_folded = !wal::beside(&path, "-shm").exists() && is_all_folded(&path, marker.as_ref());
        return if is_folded { Ok(()) } else { damaged("is missing".into()) };
    }
    let left = if marker.is_some_and(|marker| marker.is_of_this_boot()) { Left::SameBoot } else { Left::Unknown };
    match wal::look(&path, left).map_err(OpenError::at_file)? {
        Verdict::Whole => Ok(()),
        Verdict::Damaged { frame: 0 } => damaged("has no valid header".into()),
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

/// SQLite gives its log and index the mode of the database, so the database must be private when it is created.
fn make_private(path: &Path) -> std::io::Result<()> {
    File::options().read(true).append(true).create(true).mode(0o600).open(path).map(drop)
}

/// A durable write is useless if the file's name is lost, so the directory is synced too.
fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}

fn holder(pid: Option<u32>) -> String {
    match pid {
        Some(pid) => format!("process {pid}"),
        None => "another process".into(),
    }
}
