//! The marker beside the database: what the data directory knows of its store, in a file of its own.
//!
//! A database can't tell that it is missing, that it is an older copy of itself, or that its log was taken away. The marker can. It is
//! written at each opening, after the commit that it speaks of, so that the database is never behind it by itself.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The file, in the data directory.
pub(crate) const MARKER: &str = "saggar.state";
/// Beside it: there while the database must have a log. Whoever closes the store removes it first, which a full disk doesn't prevent.
pub(crate) const OPEN: &str = "saggar.open";
const VERSION: u32 = 1;
const LEN_MAX: u64 = 4096;

/// What it says. A later version may say more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Marker {
    v: u32,
    /// How often the store has been opened, as the store itself counts.
    pub(crate) opens: u64,
    /// The boot of the host at the last opening.
    pub(crate) boot: Option<String>,
}

impl Marker {
    pub(crate) fn opened(opens: u64) -> Self {
        Self { v: VERSION, opens, boot: boot() }
    }

    /// `None` where there is none; one that can't be read says nothing.
    pub(crate) fn read(directory: &Path) -> io::Result<Option<Self>> {
        let file = match File::open(path_in(directory)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let mut text = String::new();
        io::Read::read_to_string(&mut io::Read::take(file, LEN_MAX), &mut text)?;
        Ok(serde_json::from_str(&text).ok())
    }

    /// Whether the store was last opened in this boot: then nothing of it was lost by a power cut.
    pub(crate) fn is_of_this_boot(&self) -> bool {
        self.boot.is_some() && self.boot == boot()
    }

    /// Takes the place of the one before as a whole, and survives a power cut.
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

/// From here on there is a log, and it may not go missing.
pub(crate) fn expect_log(directory: &Path) -> io::Result<()> {
    File::options().write(true).create(true).truncate(false).mode(0o600).open(directory.join(OPEN)).map(drop)
}

/// From here on the log may go: whoever closes the store last folds it back into the database.
pub(crate) fn expect_no_log(directory: &Path) -> io::Result<()> {
    remove(&directory.join(OPEN))
}

/// Whether there must be a log.
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
