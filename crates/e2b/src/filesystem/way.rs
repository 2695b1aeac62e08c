//! Resolves a link: the final absolute path without links, as E2B's agent reports it.
//!
//! The sandbox is asked about one component after the other, as its user. This is not a security check: the result
//! may be outdated when the client reads it.

use std::collections::{HashSet, VecDeque};

use saggar_runtime::{FileKind, FilePath, Files};

/// Maximum number of links on a path, as in the kernel.
const LINKS_MAX: u32 = 40;
/// Maximum number of remembered paths per request.
const PLAIN_MAX: usize = 10_000;

/// Resolved paths of one request. Common parents are examined once.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// Paths that are not links.
    plain: HashSet<Vec<u8>>,
}

impl Ways {
    /// Follows every link of a path. `None` if the target doesn't exist or isn't visible.
    pub(super) async fn follow(&mut self, files: &mut Files, path: &FilePath) -> Option<FilePath> {
        let root = FilePath::parse("/", "/").ok()?;
        let mut ahead: VecDeque<Vec<u8>> = names(&path.bytes());
        let mut behind: Vec<Vec<u8>> = Vec::new();
        let mut links = 0;
        while let Some(name) = ahead.pop_front() {
            if name == b".." {
                behind.pop();
                continue;
            }
            behind.push(name);
            let here = root.join(&behind.join(&b'/')).ok()?;
            let Some(target) = self.link_at(files, &here).await? else { continue };
            links += 1;
            if links > LINKS_MAX {
                return None;
            }
            if target.starts_with(b"/") {
                behind.clear();
            } else {
                behind.pop();
            }
            for name in names(&target).into_iter().rev() {
                ahead.push_front(name);
            }
        }
        root.join(&behind.join(&b'/')).ok()
    }

    /// The target of the link at this path; the inner `None` if it isn't a link.
    async fn link_at(&mut self, files: &mut Files, path: &FilePath) -> Option<Option<Vec<u8>>> {
        if self.plain.contains(&path.bytes()) {
            return Some(None);
        }
        let entry = files.stat(path, false).await.ok()?;
        if entry.kind == FileKind::Link {
            return Some(Some(entry.link_target?));
        }
        if self.plain.len() < PLAIN_MAX {
            self.plain.insert(path.bytes());
        }
        Some(None)
    }
}

fn names(path: &[u8]) -> VecDeque<Vec<u8>> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.map(<[u8]>::to_vec).collect()
}
