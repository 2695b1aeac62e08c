//! Looking a data directory through: is everything in the store what was once written?
//!
//! Only reads, and doesn't ask for the lock: a server may run meanwhile. These calls block. What entries mean is for the caller to judge.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rusqlite::Connection;
use saggar_domain::RunId;

use crate::backup::{BackupError, COMPANIONS, integrity, mark, remove_if_there, with_suffix};
use crate::column;
use crate::error::Error;
use crate::marker;
use crate::migrate;
use crate::open::{self, OpenError};
use crate::restored;
use crate::run::{self, BlobHash, Blobs, JournalEntry, RunRow};
use crate::stuck::is_any_worker_alive;

const RUN_IDS: &str = "SELECT id FROM run WHERE id > ?1 ORDER BY id LIMIT 1000";
const ORPHANS: &str = "
    SELECT count(*) AS orphans FROM journal WHERE NOT EXISTS (
        SELECT 1 FROM run WHERE run.id = journal.run_id AND seq <= head AND seq > coalesce(parent_through, 0))";
const BLOBS: &str = "SELECT hash, bytes FROM blob";
/// Files that hold everything a server knows: nobody else may read them.
const PRIVATE: [&str; 4] = [open::DATABASE, open::LOCK, marker::MARKER, "signing.key"];

/// What was looked at, and what was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// The schema's version.
    pub schema: u32,
    /// Runs whose journals were read.
    pub runs: u64,
    /// Entries of these.
    pub entries: u64,
    /// Blobs whose hashes were compared.
    pub blobs: u64,
    /// What is wrong. Empty where nothing is.
    pub findings: Vec<Finding>,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What it is about: a file, a run, a blob.
    pub about: String,
    /// What is wrong with it.
    pub what: String,
}

impl Checked {
    fn find(&mut self, about: impl Into<String>, what: impl Into<String>) {
        self.findings.push(Finding { about: about.into(), what: what.into() });
    }
}

/// Looks a data directory through. `judge` is given each run with its whole journal and whether blobs are there, and says what is wrong with it.
pub fn check(
    data_directory: &Path,
    mut judge: impl FnMut(&RunRow, &[JournalEntry], &Blobs<'_>) -> Option<String>,
) -> Result<Checked, OpenError> {
    let mut checked = Checked::default();
    let path = open::database_in(data_directory);
    if std::fs::metadata(&path).map_or(0, |found| found.len()) == 0 {
        let what = if path.exists() { "is empty" } else { "is missing" };
        return Err(OpenError::Gone { what });
    }
    check_files(data_directory, &mut checked);
    if let Err(error @ OpenError::LogDamaged { .. }) = open::check_log(data_directory) {
        checked.find(format!("{}-wal", open::DATABASE), error.to_string());
        // Reading on would have SQLite recover from it, and what tells of the damage would be gone.
        checked.find(open::DATABASE, "was not looked at, because its log is damaged");
        return Ok(checked);
    }
    let connection = open::connect_to_read(&path).map_err(OpenError::from_storage)?;
    checked.schema = migrate::check_version(&connection)?;
    match integrity(&connection) {
        Ok(found) if found == "ok" => {}
        Ok(found) => checked.find(open::DATABASE, found),
        Err(error) => checked.find(open::DATABASE, error.to_string()),
    }
    if checked.schema != migrate::known() {
        let (found, known) = (checked.schema, migrate::known());
        checked.find(open::DATABASE, format!("has schema version {found}; its runs are looked at in version {known}"));
        return Ok(checked);
    }
    for looked in [check_runs(&connection, &mut checked, &mut judge), check_blobs(&connection, &mut checked)] {
        if let Err(error) = looked {
            checked.find(open::DATABASE, error.to_string());
        }
    }
    Ok(checked)
}

fn check_files(directory: &Path, checked: &mut Checked) {
    for name in PRIVATE {
        if let Ok(found) = std::fs::metadata(directory.join(name))
            && found.permissions().mode() & 0o077 != 0
        {
            checked.find(name, "can be read by others: its mode should be 0600");
        }
    }
    if std::fs::metadata(directory.join("signing.key")).is_ok_and(|key| key.len() != 32) {
        checked.find("signing.key", "is not a key: it should have 32 bytes");
    }
    let partial = format!("{}.partial", open::DATABASE);
    if directory.join(&partial).exists() {
        checked.find(partial, "was left by a restore that was broken off: it can be removed");
    }
}

fn check_runs(
    connection: &Connection,
    checked: &mut Checked,
    judge: &mut impl FnMut(&RunRow, &[JournalEntry], &Blobs<'_>) -> Option<String>,
) -> Result<(), Error> {
    let mut after = String::new();
    loop {
        let ids = column::all(connection, RUN_IDS, [after.as_str()], |row| column::plain::<String>(row, "id"))?;
        let Some(last) = ids.last() else { break };
        after.clone_from(last);
        for text in ids {
            checked.runs += 1;
            match check_run(connection, &text, checked, judge) {
                Ok(None) => {}
                Ok(Some(what)) => checked.find(text, what),
                Err(error) => checked.find(text, error.to_string()),
            }
        }
    }
    let orphans = column::one(connection, ORPHANS, [], |row| column::number(row, "orphans"))?.unwrap_or(0);
    if orphans > 0 {
        checked.find(open::DATABASE, format!("has {orphans} entries that belong to no run"));
    }
    Ok(())
}

fn check_run(
    connection: &Connection,
    text: &str,
    checked: &mut Checked,
    judge: &mut impl FnMut(&RunRow, &[JournalEntry], &Blobs<'_>) -> Option<String>,
) -> Result<Option<String>, Error> {
    let id = RunId::parse(text).ok_or_else(|| column::damaged("id"))?;
    // A server may append or remove meanwhile: the row, the entries and the blobs are those of one moment. It only reads, and ends with the
    // run, so that the log is not kept from being folded back.
    let _moment = connection.unchecked_transaction()?;
    let Some(row) = run::any(connection, &id)? else { return Ok(None) };
    let mut entries = Vec::new();
    loop {
        let page = run::page(connection, &id, entries.len() as u64, run::JOURNAL_PAGE)?;
        if page.is_empty() {
            break;
        }
        checked.entries += page.len() as u64;
        entries.extend(page);
    }
    Ok(judge(&row, &entries, &Blobs(connection)))
}

fn check_blobs(connection: &Connection, checked: &mut Checked) -> Result<(), Error> {
    let mut statement = connection.prepare(BLOBS)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        checked.blobs += 1;
        let (hash, bytes): (Vec<u8>, Vec<u8>) = (column::plain(row, "hash")?, column::plain(row, "bytes")?);
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        if BlobHash::of(&bytes).to_hex() != hash {
            checked.find(format!("blob {hash}"), "doesn't have its hash any more");
        }
    }
    Ok(())
}

/// Goes on without the writes that a damaged or missing log has lost. What is left of the log is kept beside it; every open run is blocked
/// at the next start, because it may have done more than the store knows. `false` where nothing was lost.
pub fn accept_loss(data_directory: &Path) -> Result<bool, BackupError> {
    let _lock = open::lock(data_directory)?;
    let database = open::database_in(data_directory);
    if !database.exists() {
        return Err(BackupError::NoStore);
    }
    // They would write to a log that is taken from under them.
    if is_any_worker_alive(data_directory)? {
        return Err(OpenError::Locked { pid: None }.into());
    }
    match open::check_log(data_directory) {
        Ok(()) => return Ok(false),
        Err(OpenError::LogDamaged { .. }) => {}
        Err(other) => return Err(other.into()),
    }
    let [log, index] = COMPANIONS.map(|suffix| with_suffix(&database, suffix));
    if log.exists() {
        let kept = with_suffix(&log, ".damaged");
        std::fs::copy(&log, &kept)?;
        std::fs::File::open(&kept)?.sync_all()?;
    }
    // Without it SQLite reads the log itself, up to where it is damaged.
    remove_if_there(&index)?;
    mark(&database, restored::mark_loss)?;
    marker::expect_no_log(data_directory)?;
    Ok(true)
}
