//! How much one image or build may bring, and how much of it is left.

use saggar_domain::{ByteSize, Problem};

use crate::failure::refused;

/// Maximum length of all paths of an image that are kept in memory.
const PATHS_BYTES_MAX: u64 = 256 << 20;

/// Bounds of one import or build.
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

/// What is bounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Image,
    Steps,
    Upload,
}

/// What an import or a build may still write. Each method takes its share or refuses.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: Limits,
    origin: Origin,
    archives: u64,
    contents: u64,
    entries: u64,
    paths: u64,
}

impl Budget {
    /// Of an image.
    pub(crate) fn new(limits: Limits) -> Self {
        Self::of(limits, Origin::Image)
    }

    /// Of what the steps of a build copy and write.
    pub(crate) fn for_build(limits: Limits) -> Self {
        Self::of(limits, Origin::Steps)
    }

    /// Of files that a client sent for the steps of a build.
    pub(crate) fn for_upload(limits: Limits) -> Self {
        Self::of(limits, Origin::Upload)
    }

    fn of(limits: Limits, origin: Origin) -> Self {
        let Limits { bytes_max, entries_max } = limits;
        Self { limits, origin, archives: bytes_max, contents: bytes_max, entries: entries_max, paths: PATHS_BYTES_MAX }
    }

    /// The most that the next archive may have, uncompressed, and what to say if it has more.
    pub(crate) fn archive_max(&self) -> (u64, Problem) {
        (self.archives, self.too_large())
    }

    /// Bytes of an archive, uncompressed.
    pub(crate) fn archive(&mut self, bytes: u64) -> Result<(), Problem> {
        take(&mut self.archives, bytes).ok_or_else(|| self.too_large())
    }

    /// Bytes of a file, holes included.
    pub(crate) fn content(&mut self, bytes: u64) -> Result<(), Problem> {
        take(&mut self.contents, bytes).ok_or_else(|| self.too_large())
    }

    /// Names that are about to be read, before they are taken as entries.
    pub(crate) fn listed(&self, count: u64) -> Result<(), Problem> {
        if count <= self.entries { Ok(()) } else { Err(self.too_many()) }
    }

    /// What is left of the size and of the entries.
    pub(crate) fn left(&self) -> (u64, u64) {
        (self.contents, self.entries)
    }

    /// One entry.
    pub(crate) fn entry(&mut self, path_bytes: usize) -> Result<(), Problem> {
        take(&mut self.entries, 1).ok_or_else(|| self.too_many())?;
        take(&mut self.paths, path_bytes as u64).ok_or_else(|| {
            let (what, help) = match self.origin {
                Origin::Image => ("the names of the image's files take", "import an image with fewer or shorter names"),
                Origin::Steps => ("the names of the files of all steps take", "write fewer files, or shorter names"),
                Origin::Upload => ("the names of the files that were sent take", "send fewer files, or shorter names"),
            };
            refused(format!("{what} more than {} MiB", PATHS_BYTES_MAX >> 20), help)
        })
    }

    fn too_many(&self) -> Problem {
        let max = self.limits.entries_max;
        match self.origin {
            Origin::Image => refused(
                format!("the image has more than {max} entries"),
                "use an image with fewer files, or raise --max-entries",
            ),
            Origin::Steps => refused(
                format!("the steps copy and write more than {max} entries"),
                "copy and write fewer files, or raise --max-entries",
            ),
            Origin::Upload => refused(
                format!("the files that were sent for the build are more than {max}"),
                "list what isn't needed in .dockerignore",
            ),
        }
    }

    fn too_large(&self) -> Problem {
        let max = ByteSize::from_bytes(self.limits.bytes_max);
        match self.origin {
            Origin::Image => refused(
                format!("the image is larger than {max} when uncompressed"),
                "use a smaller image, or raise --max-size",
            ),
            Origin::Steps => refused(
                format!("what the steps copy and write is larger than {max}"),
                "copy and write less, or raise --max-size",
            ),
            Origin::Upload => refused(
                format!("the files that were sent for the build are larger than {max} when uncompressed"),
                "list what isn't needed in .dockerignore; the operator's setting is `import_size_max`",
            ),
        }
    }
}

fn take(left: &mut u64, amount: u64) -> Option<()> {
    *left = left.checked_sub(amount)?;
    Some(())
}
