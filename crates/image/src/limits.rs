//! How much one image may bring, and how much of it is left.

use saggar_domain::{ByteSize, Problem};

use crate::failure::refused;

/// Maximum length of all paths of an image that are kept in memory.
const PATHS_BYTES_MAX: u64 = 256 << 20;

/// Bounds of one import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Of all layers, uncompressed.
    pub bytes_max: u64,
    /// Of all layers.
    pub entries_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes_max: 16 << 30, entries_max: 1_000_000 }
    }
}

/// What an import may still write. Each method takes its share or refuses the image.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: Limits,
    archives: u64,
    contents: u64,
    entries: u64,
    paths: u64,
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Self {
        let Limits { bytes_max, entries_max } = limits;
        Self { limits, archives: bytes_max, contents: bytes_max, entries: entries_max, paths: PATHS_BYTES_MAX }
    }

    /// The most that the next archive may have, uncompressed, and what to say if it has more.
    pub(crate) fn archive_max(&self) -> (u64, Problem) {
        (self.archives, too_large(self.limits))
    }

    /// Bytes of an archive, uncompressed.
    pub(crate) fn archive(&mut self, bytes: u64) -> Result<(), Problem> {
        let limits = self.limits;
        take(&mut self.archives, bytes).ok_or_else(|| too_large(limits))
    }

    /// Bytes of a file, holes included.
    pub(crate) fn content(&mut self, bytes: u64) -> Result<(), Problem> {
        let limits = self.limits;
        take(&mut self.contents, bytes).ok_or_else(|| too_large(limits))
    }

    /// Names that are about to be read, before they are taken as entries.
    pub(crate) fn listed(&self, count: u64) -> Result<(), Problem> {
        if count <= self.entries { Ok(()) } else { Err(too_many(self.limits)) }
    }

    /// What is left of the size and of the entries.
    pub(crate) fn left(&self) -> (u64, u64) {
        (self.contents, self.entries)
    }

    /// One entry.
    pub(crate) fn entry(&mut self, path_bytes: usize) -> Result<(), Problem> {
        let limits = self.limits;
        take(&mut self.entries, 1).ok_or_else(|| too_many(limits))?;
        take(&mut self.paths, path_bytes as u64).ok_or_else(|| {
            refused(
                format!("the names of the image's files take more than {} MiB", PATHS_BYTES_MAX >> 20),
                "import an image with fewer or shorter names",
            )
        })
    }
}

fn take(left: &mut u64, amount: u64) -> Option<()> {
    *left = left.checked_sub(amount)?;
    Some(())
}

fn too_many(limits: Limits) -> Problem {
    refused(
        format!("the image has more than {} entries", limits.entries_max),
        "use an image with fewer files, or raise --max-entries",
    )
}

fn too_large(limits: Limits) -> Problem {
    refused(
        format!("the image is larger than {} when uncompressed", ByteSize::from_bytes(limits.bytes_max)),
        "use a smaller image, or raise --max-size",
    )
}
