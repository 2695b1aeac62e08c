//! Backups: a complete, consistent copy of the store in one file, made while the server runs; and restoring it.
//!
//! Neither needs the server. A backup only reads, so it doesn't take the lock; a restore does. The written file
//! itself is verified, so a backup that can't be restored fails now and not later. These calls block.

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

/// Suffix of a file that is not yet complete.
const PARTIAL: &str = ".partial";
/// Files that SQLite keeps beside a database; stale without it.
pub(crate) const COMPANIONS: [&str; 2] = ["-wal", "-shm"];

/// Why a backup or a restore failed. Existing files have not changed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("the data directory has no store")]
    NoStore,
    #[error("the backup file already exists")]
    TargetExists,
    #[error("the data directory already has a store")]
    StoreExists,
    /// The copy is incomplete, or not a store.
    #[error("the backup {what}")]
    Unusable { what: String },
    /// The data directory can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Storage(#[from] Error),
    #[error("the backup can't be read or written: {}", .0.kind())]
    Io(#[from] std::io::Error),
}

impl BackupError {
    pub fn help(&self) -> String {
        match self {
            Self::NoStore => "name the data directory of a server that has been started before".into(),
            Self::TargetExists => "name a new file; backups are never overwritten".into(),
            Self::StoreExists => format!("move {} away first, or name another data directory", open::DATABASE),
            Self::Unusable { .. } => "use another backup; this one can't be restored".into(),
            Self::Open(error) => error.help(),
            Self::Storage(error) => error.help().into(),
            Self::Io(_) => "check the path, its permissions and the free space on its disk".into(),
        }
    }
}

/// Writes a copy of a data directory's store to a new file, whether or not a server runs there. The copy is marked as
/// one, with its time, because its runs may have continued in the original.
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

/// Restores a backup into a data directory that has no store. An older version is migrated when it is opened.
pub fn restore(from: &Path, data_directory: &Path) -> Result<(), BackupError> {
    let _lock = open::lock(data_directory)?;
    let database = open::database_in(data_directory);
    if database.try_exists()? {
        return Err(BackupError::StoreExists);
    }
    let partial = with_suffix(&database, PARTIAL);
    // Left by a restore that was killed; the lock shows that no restore is in progress.
    remove_if_there(&partial)?;
    make_new(&partial)?;
    let written = copy_file(from, &partial)
        .and_then(|()| check(&partial))
        // Backups of earlier versions are not marked as copies.
        .and_then(|()| mark(&partial, restored::mark_restored))
        .and_then(|()| COMPANIONS.iter().try_for_each(|suffix| remove_if_there(&with_suffix(&database, suffix))))
        // The marker describes the store that was here before.
        .and_then(|()| Ok(Marker::remove(data_directory).and_then(|()| marker::expect_no_log(data_directory))?))
        .and_then(|()| publish(&partial, &database));
    discard_unless(written, &partial)
}

fn copy_database(database: &Path, to: &Path, now: Timestamp) -> Result<(), BackupError> {
    let connection = open::connect_to_read(database)?;
    let target = to.to_str().ok_or_else(|| std::io::Error::from(ErrorKind::InvalidInput))?;
    // The statement only reads this database, but a query-only connection refuses it.
    connection.pragma_update(None, "query_only", false).map_err(Error::from)?;
    connection.execute("VACUUM INTO ?1", [target]).map_err(Error::from)?;
    mark(to, |copy| restored::mark_copy(copy, now))
}

/// Writes to the copy itself, before it gets its name.
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
    Ok(if found == "ok" && dangling > 0 { format!("{dangling} rows have no parent row") } else { found })
}

/// Renames the file only when it is complete and synced.
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
        // The original error is more useful than one about its leftovers.
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
