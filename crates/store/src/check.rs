//! Verifies a data directory: is everything in the store as it was written?
//!
//! It only reads and doesn't take the lock, so a server may be running. These calls block. The caller judges the
//! contents of entries.

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
use crate::secret::{self, SealedSecret};
use crate::stuck::is_any_worker_alive;

const RUN_IDS: &str = "SELECT id FROM run WHERE id > ?1 ORDER BY id LIMIT 1000";
const ORPHANS: &str = "
    SELECT count(*) AS orphans FROM journal WHERE NOT EXISTS (
        SELECT 1 FROM run WHERE run.id = journal.run_id AND seq <= head AND seq > coalesce(parent_through, 0))";
const BLOBS: &str = "SELECT hash, bytes FROM blob";
const SECRETS: &str = concat!("SELECT ", secret::columns!(), ", sealed, rowid FROM secret");
/// Files with private data, which must not be readable by other users.
const PRIVATE: [&str; 4] = [open::DATABASE, open::LOCK, marker::MARKER, "signing.key"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Version of the schema.
    pub schema: u32,
    /// Number of runs whose journals were read.
    pub runs: u64,
    /// Number of entries in these journals.
    pub entries: u64,
    /// Number of blobs whose hashes were compared.
    pub blobs: u64,
    /// Number of secrets whose seals were looked at.
    pub secrets: u64,
    /// Problems; empty if the data directory is intact.
    pub findings: Vec<Finding>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The subject: a file, a run, a blob or a secret.
    pub about: String,
    pub what: String,
}

impl Checked {
    fn find(&mut self, about: impl Into<String>, what: impl Into<String>) {
        self.findings.push(Finding { about: about.into(), what: what.into() });
    }
}

/// Verifies a data directory. `judge` gets each run with its complete journal and access to the blobs, `judge_secret` each
/// secret; both return what is wrong with it.
pub fn check(
    data_directory: &Path,
    mut judge: impl FnMut(&RunRow, &[JournalEntry], &Blobs<'_>) -> Option<String>,
    mut judge_secret: impl FnMut(&SealedSecret) -> Option<String>,
) -> Result<Checked, OpenError> {
    let mut checked = Checked::default();
    let path = open::database_in(data_directory);
    open::expect_store(data_directory)?;
    check_files(data_directory, &mut checked);
    if let Err(error @ OpenError::LogDamaged { .. }) = open::check_log(data_directory) {
        checked.find(format!("{}-wal", open::DATABASE), error.to_string());
        // Reading on would make SQLite recover the log, which destroys the evidence of the damage.
        checked.find(open::DATABASE, "was not checked, because its log is damaged");
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
        checked
            .find(open::DATABASE, format!("has schema version {found}; its runs are checked only in version {known}"));
        return Ok(checked);
    }
    for looked in [
        check_runs(&connection, &mut checked, &mut judge),
        check_blobs(&connection, &mut checked),
        check_secrets(&connection, &mut checked, &mut judge_secret),
    ] {
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
            checked.find(name, "is readable by other users: its mode should be 0600");
        }
    }
    if std::fs::metadata(directory.join("signing.key")).is_ok_and(|key| key.len() != 32) {
        checked.find("signing.key", "is not a key: it should have 32 bytes");
    }
    let partial = format!("{}.partial", open::DATABASE);
    if directory.join(&partial).exists() {
        checked.find(partial, "was left by an interrupted restore: it can be removed");
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
    // A server may write meanwhile, so the row, entries and blobs are read in one transaction. It ends with this run, so
    // that it doesn't hold up checkpoints.
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
            checked.find(format!("blob {hash}"), "no longer matches its hash");
        }
    }
    Ok(())
}

fn check_secrets(
    connection: &Connection,
    checked: &mut Checked,
    judge: &mut impl FnMut(&SealedSecret) -> Option<String>,
) -> Result<(), Error> {
    let mut statement = connection.prepare(SECRETS)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        checked.secrets += 1;
        let found = match secret::read_sealed(row) {
            Ok(secret) => judge(&secret).map(|what| (secret.row.name.to_string(), what)),
            Err(error) => Some((format!("in row {}", column::number(row, "rowid")?), error.to_string())),
        };
        if let Some((about, what)) = found {
            checked.find(format!("secret {about}"), what);
        }
    }
    Ok(())
}

/// Continues without the writes that a damaged or missing log has lost. The rest of the log is kept beside it. Every
/// open run is blocked at the next start, because it may have done more than the store knows. Returns `false` if
/// nothing was lost.
pub fn accept_loss(data_directory: &Path) -> Result<bool, BackupError> {
    let database = open::database_in(data_directory);
    // Before the lock, which would create the directory.
    if !database.exists() {
        return Err(BackupError::NoStore);
    }
    let _lock = open::lock(data_directory)?;
    // A live worker would write to a log that is being removed.
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
    // Without the index, SQLite reads the log itself, up to the damage.
    remove_if_there(&index)?;
    mark(&database, restored::mark_loss)?;
    marker::expect_no_log(data_directory)?;
    Ok(true)
}
