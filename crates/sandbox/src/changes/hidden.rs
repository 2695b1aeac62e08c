//! Files that a changed git index hides from a review, because they are marked so that git shows no edits of them.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use super::compare::open_file;
use super::entry::{Change, Entry, Kind, Name};
use super::store::Changes;
use crate::git::index;
use crate::host_tree::HostTree;

/// Maximum length of an index that is read.
const INDEX_LEN_MAX: u64 = 256 << 20;

/// A file whose edits git would not show.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Hidden {
    /// The index that marks it.
    pub index: Name,
    /// The file, relative to the index's checkout.
    pub path: Name,
}

impl Changes {
    /// Files that a changed index marks and the host's own index does not.
    pub fn hidden(&self, workspace: &HostTree) -> Vec<Hidden> {
        let is_index = |entry: &&Entry| {
            let (_, name) = entry.path.split();
            entry.kind == Kind::File
                && entry.change != Change::Removed
                && (name == b"index" || name.starts_with(b"sharedindex."))
        };
        let mut all = Vec::new();
        if self.is_of_worktree() {
            // Its index is never applied.
            return all;
        }
        for entry in self.entries().iter().filter(is_index) {
            let Some(now) = self.content(entry).ok().and_then(marked) else { continue };
            let before =
                open_file(workspace.fd.as_fd(), entry.path.as_bytes()).ok().and_then(marked).unwrap_or_default();
            let new =
                now.difference(&before).map(|path| Hidden { index: entry.path.clone(), path: Name(path.clone()) });
            all.extend(new);
        }
        all
    }
}

/// Paths that an index marks; `None` if the file is not an index.
fn marked(file: OwnedFd) -> Option<BTreeSet<Vec<u8>>> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(std::fs::File::from(file), INDEX_LEN_MAX), &mut bytes).ok()?;
    Some(index::parse_either(&bytes).ok()?.hidden.into_iter().collect())
}
