//! The marker file beside the database: facts about the store that the database itself can't know.
//!
//! A database can't tell that it is missing, that it is an older copy of itself, or that its log was removed. The
//! marker can. It is written at each opening, after the commit that it describes, so that the database is never
//! behind it.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The file's name in the data directory.
pub(crate) const MARKER: &str = "saggar.state";
/// A file that exists while the database must have a log. A closing store removes it first, which works even on a
/// full disk.
pub(crate) const OPEN: &str = "saggar.open";
const VERSION: u32 = 1;
const LEN_MAX: u64 = 4096;

/// The marker's contents. A later version may add fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marker {
    v: u32,
    /// Number of openings, as counted by the store itself.
    pub(crate) opens: u64,
    /// The host's boot id at the last opening.
    pub(crate) boot: Option<String>,
}

impl Marker {
    pub(crate) fn opened(opens: u64) -> Self {
        Self { v: VERSION, opens, boot: boot() }
    }

    /// `None` if there is none, or if it can't be parsed.
    pub(crate) fn read(directory: &Path) -> io::Result<Option<Self>> {
        let file = match File::open(path_in(directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mut text = String::new();
        io::Read::read_to_string(&mut io::Read::take(file, LEN_MAX), &mut text)?;
        Ok(serde_json::from_str(&text).ok())
    }

    /// Whether the store was last opened in this boot. If so, no power cut has lost anything.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        self.boot.is_some() && self.boot == boot()
    }

    /// Replaces the previous marker atomically and durably.
    pub(crate) fn write(&self, directory: &Path) -> io::Result<()> {
        let new = directory.join(format!("{MARKER}.{}", std::process::id()));
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(serde_json::to_string(self).map_err(io::Error::other)?.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, path_in(directory))?;
        File::open(directory)?.sync_all()
    }

    pub(crate) fn remove(directory: &Path) -> io::Result<()> {
        remove(&path_in(directory))
    }
}

/// From now on a missing log is an error.
pub(crate) fn expect_log(directory: &Path) -> io::Result<()> {
    File::options().write(true).create(true).truncate(false).mode(0o600).open(directory.join(OPEN)).map(drop)
}

/// From now on the log may be removed: the last process to close the store checkpoints it into the database.
pub(crate) fn expect_no_log(directory: &Path) -> io::Result<()> {
    remove(&directory.join(OPEN))
}

pub(crate) fn is_log_expected(directory: &Path) -> bool {
    directory.join(OPEN).exists()
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn path_in(directory: &Path) -> PathBuf {
    directory.join(MARKER)
}

fn boot() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|text| text.trim().to_owned())
}
