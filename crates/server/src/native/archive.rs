//! Trees as tar archives: written as they are read, and read as they come, neither ever whole in memory.
//!
//! No IO is done here. What is taken is plain: files, directories and symbolic links, each below the one directory that is named, each
//! once. Everything else that an archive can say is refused with the entry's name, before anything is done for it.

mod gzip;
mod header;
mod pack;
mod pax;
mod unpack;

pub(crate) use gzip::Inflater;
pub(crate) use pack::{Kind, Packed, end_of_archive, entry, padding};
pub(crate) use unpack::{Item, Unpacker};

/// Most entries of an uploaded archive.
pub(crate) const ENTRIES_MAX: u64 = 200_000;

/// Why an archive isn't taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ArchiveError {
    /// It isn't one, or is damaged.
    #[error("the archive is damaged: {0}")]
    Damaged(&'static str),
    /// An entry that is not taken, and why.
    #[error("entry {name:?} is not taken: {why}")]
    Entry {
        /// Its name, as far as it can be told.
        name: String,
        why: &'static str,
    },
    /// An entry whose name leads elsewhere.
    #[error("entry {name:?} leads out of the directory")]
    Outside { name: String },
    /// More than is taken.
    #[error("the archive has {0}")]
    TooLarge(String),
}

impl ArchiveError {
    fn entry(name: &[u8], why: &'static str) -> Self {
        Self::Entry { name: shown(name), why }
    }
}

/// A name for a message: cut, and never raw.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(200)]).into_owned()
}
