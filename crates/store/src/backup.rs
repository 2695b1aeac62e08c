//! Backups: a whole, consistent copy of the store in one file, made while the server runs; and the way back.
//!
//! Neither needs the server. A backup only reads, so it doesn't ask for the lock; a restore does. What is checked is the very
//! file that is handed over, after it was written: a backup that can't be restored is an error today. These calls block.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use saggar_domain::Timestamp;

use crate::error::Error;
use crate::marker::{self, Marker};
use crate::migrate::{self, MigrateError};
use crate::open::{self, OpenError};
use crate::restored;

/// Appended to a name while the file is not yet whole.
const PARTIAL: &str = ".partial";
/// What SQLite keeps beside a database; stale without it.
pub(crate) const COMPANIONS: [&str; 2] = ["-wal", "-shm"];

/// Why a backup or a restore failed. Nothing that was there before has changed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// There is nothing to back up.
    #[error("the data directory has no store")]
    NoStore,
    /// The file to be written is there already.
    #[error("the file for the backup is there already")]
    TargetExists,
    /// There is a store where one should be restored.
    #[error("the data directory has a store already")]
    StoreExists,
    /// The copy is not whole, or not a store.
    #[error("the backup {what}")]
    Unusable {
        /// In what way.
        what: String,
    },
    /// The data directory can't be had.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Reading or writing the store failed.
    #[error(transparent)]
    Storage(#[from] Error),
    /// Reading or writing the backup failed.
    #[error("the backup can't be read or written: {}", .0.kind())]
    Io(#[from] std::io::Error),
}

impl BackupError {
    /// What to do next.
    pub fn help(&self) -> String {
        match self {
            Self::NoStore => "name the data directory of a server that has run".into(),
            Self::TargetExists => "name a new file; backups are never overwritten".into(),
            Self::StoreExists => format!("move {} away first, or name another data directory", open::DATABASE),
            Self::Unusable { .. } => "use another backup; this one can't be restored".into(),
            Self::Open(error) => error.help(),
            Self::Storage(error) => error.help().into(),
            Self::Io(_) => "look at the path, its permissions and the room on its disk".into(),
        }
    }
}

/// Writes a copy of the store of a data directory to a new file, whether or not a server runs there. The copy says of itself that it is
/// one, and of when: whoever opens it knows that its runs may have gone on.
pub fn backup(data_directory: &Path, to: &Path, now: Timestamp) -> Result<(), BackupError> {
    let database = open::database_in(data_directory);
    if !database.try_exists()? {
        return Err(BackupError::NoStore);
    }
    open::check_log(data_directory)?;
    let partial = with_suffix(to, PARTIAL);
    make_new(&partial)?;
    let written =
        copy_database(&database, &partial, now).and_then(|()| check(&partial)).and_then(|()| publish(&partial, to));
    discard_unless(written, &partial)
}

/// Makes a backup the store of a data directory that has none. An older one is migrated when it is opened.
pub fn restore(from: &Path, data_directory: &Path) -> Result<(), BackupError> {
    let _lock = open::lock(data_directory)?;
    let database = open::database_in(data_directory);
    if database.try_exists()? {
        return Err(BackupError::StoreExists);
    }
    let partial = with_suffix(&database, PARTIAL);
    // Left by a restore that was killed; the lock says that nobody is at it.
    remove_if_there(&partial)?;
    make_new(&partial)?;
    let written = copy_file(from, &partial)
        .and_then(|()| check(&partial))
        // A backup of an earlier version doesn't say that it is one.
        .and_then(|()| mark(&partial, restored::mark_restored))
        .and_then(|()| COMPANIONS.iter().try_for_each(|suffix| remove_if_there(&with_suffix(&database, suffix))))
        // It speaks of the store that was here.
        .and_then(|()| Ok(Marker::remove(data_directory).and_then(|()| marker::expect_no_log(data_directory))?))
        .and_then(|()| publish(&partial, &database));
    discard_unless(written, &partial)
}

fn copy_database(database: &Path, to: &Path, now: Timestamp) -> Result<(), BackupError> {
    let connection = open::connect_to_read(database)?;
    let target = to.to_str().ok_or_else(|| std::io::Error::from(ErrorKind::InvalidInput))?;
    // It only reads this database; but a connection that may only query refuses the statement.
    connection.pragma_update(None, "query_only", false).map_err(Error::from)?;
    connection.execute("VACUUM INTO ?1", [target]).map_err(Error::from)?;
    mark(to, |copy| restored::mark_copy(copy, now))
}

/// Writes to the copy itself, before it has its name.
pub(crate) fn mark(copy: &Path, mark: impl FnOnce(&Connection) -> Result<(), Error>) -> Result<(), BackupError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(copy, flags).map_err(Error::from)?;
    Ok(mark(&connection)?)
}

fn copy_file(from: &Path, to: &Path) -> Result<(), BackupError> {
    let mut target = File::options().write(true).open(to)?;
    std::io::copy(&mut File::open(from)?, &mut target)?;
    Ok(())
}

/// Reads every page, every index and every reference.
fn check(path: &Path) -> Result<(), BackupError> {
    let connection = open::connect_to_read(path)?;
    let unusable = |what: String| Err(BackupError::Unusable { what });
    match migrate::check_version(&connection) {
        Ok(0) => return unusable("is empty".into()),
        Ok(_) => {}
        Err(MigrateError::Newer { found, known }) => {
            return unusable(format!("has schema version {found}, and this program knows up to {known}"));
        }
        Err(MigrateError::Foreign) => return unusable("belongs to another program".into()),
        Err(MigrateError::Storage(Error::Corrupt { what })) => return unusable(format!("is damaged: {what}")),
        Err(MigrateError::Storage(error)) => return Err(error.into()),
    }
    match integrity(&connection) {
        Ok(found) if found == "ok" => Ok(()),
        Ok(found) => unusable(format!("is damaged: {found}")),
        Err(Error::Corrupt { what }) => unusable(format!("is damaged: {what}")),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn integrity(connection: &Connection) -> Result<String, Error> {
    let found: String = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
    let dangling: u32 = connection.query_row("SELECT count(*) FROM pragma_foreign_key_check", [], |row| row.get(0))?;
    Ok(if found == "ok" && dangling > 0 { format!("{dangling} rows belong to nothing") } else { found })
}

/// Under its name only once it is whole and on the disk.
fn publish(partial: &Path, to: &Path) -> Result<(), BackupError> {
    File::open(partial)?.sync_all()?;
    match renameat_with(CWD, partial, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(rustix::io::Errno::EXIST) => return Err(BackupError::TargetExists),
        Err(errno) => return Err(BackupError::Io(errno.into())),
    }
    let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()?;
    Ok(())
}

fn make_new(path: &Path) -> Result<(), BackupError> {
    match File::options().write(true).create_new(true).mode(0o600).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(BackupError::TargetExists),
        Err(error) => Err(error.into()),
    }
}

fn discard_unless(written: Result<(), BackupError>, partial: &Path) -> Result<(), BackupError> {
    if written.is_err() {
        // The error that is on its way says more than one about the remains of it.
        let _ = remove_if_there(partial);
    }
    written
}

pub(crate) fn remove_if_there(path: &Path) -> Result<(), BackupError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
