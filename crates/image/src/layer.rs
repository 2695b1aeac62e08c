//! Layers on disk: written from an archive that nobody vouches for, and compared with what was written.

mod attributes;
mod below;
mod bundle;
mod change;
mod changes;
mod content;
mod copy;
mod entry_path;
#[cfg(test)]
mod fuzz;
mod merge;
mod opened;
mod pack;
mod spool;
mod tree_digest;
mod unpack;
mod view;
mod whiteout;
mod writer;
mod written;

pub(crate) use below::Below;
pub(crate) use pack::pack;
pub(crate) use spool::Spooled;
pub(crate) use tree_digest::{Contents, TreeDigest};
pub(crate) use unpack::unpack;
pub(crate) use written::{Content, Copied, Still, Written, copy, write_spooled};

pub use content::GoOn;
pub use copy::{Fate, Ignored, Placement, Selection};
pub(crate) use view::is_opaque;
pub use view::{Beyond, ResolveError, Seen, View};

use saggar_domain::template::Owners;
use saggar_sandbox::STORE_IDS;

/// The owner of what has none of its own, and of ids that no sandbox has.
const NOBODY: u32 = 65534;

/// Whose files a layer's are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// The image's ids, moved into the store's range. Only root can do it.
    Shifted,
    /// Everything belongs to this user.
    Dropped,
}

impl Ownership {
    /// What this process can do.
    pub(crate) fn here() -> Self {
        if rustix::process::geteuid().is_root() { Self::Shifted } else { Self::Dropped }
    }

    pub(crate) fn record(self) -> Owners {
        match self {
            Self::Shifted => Owners::Shifted,
            Self::Dropped => Owners::Dropped,
        }
    }

    /// An id on disk, and whether the image's own was kept.
    fn on_disk(id: u64) -> (u32, bool) {
        match u32::try_from(id) {
            Ok(id) if (id as usize) < STORE_IDS.len() => (STORE_IDS.start + id, true),
            _ => (STORE_IDS.start + NOBODY, false),
        }
    }
}
