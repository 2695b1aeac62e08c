//! Directory trees as tar archives: written and read as streams, never whole in memory.
//!
//! No IO is done here. It accepts files, directories and symbolic links, each below the named directory and each
//! once. Any other entry is rejected by name, before anything is done for it.

mod gzip;
mod header;
mod pack;
mod pax;
mod unpack;

pub(crate) use gzip::Inflater;
pub(crate) use pack::{Kind, Packed, end_of_archive, entry, padding};
pub(crate) use unpack::{Item, Unpacker};

/// Maximum number of entries of an uploaded archive.
pub(crate) const ENTRIES_MAX: u64 = 200_000;

/// Why an archive is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArchiveError {
    /// It isn't an archive, or is damaged.
    #[error("the archive is damaged: {0}")]
    Damaged(&'static str),
    /// A rejected entry, with the reason.
    #[error("entry {name:?} is rejected: {why}")]
    Entry {
        /// As far as it can be decoded.
        name: String,
        why: &'static str,
    },
    /// An entry whose name leads out of the directory.
    #[error("entry {name:?} leads out of the directory")]
    Outside { name: String },
    /// A size limit is exceeded.
    #[error("the archive has {0}")]
    TooLarge(String),
}

impl ArchiveError {
    fn entry(name: &[u8], why: &'static str) -> Self {
        Self::Entry { name: shown(name), why }
    }
}

/// A name for a message: truncated and escaped.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(200)]).into_owned()
}
