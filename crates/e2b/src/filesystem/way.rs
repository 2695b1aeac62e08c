//! Where a link leads in the end: an absolute path with no link in it, as E2B's agent tells it.
//!
//! The sandbox is asked about one name after the other, as its user. That is no check of anything: it may be otherwise by the time the
//! client reads it.

use std::collections::{HashSet, VecDeque};

use saggar_domain::User;
use saggar_runtime::{FileKind, FilePath, Files};

/// How many links one way may go through, as in the kernel.
const LINKS_MAX: u32 = 40;
/// How many paths are remembered for one request.
const PLAIN_MAX: usize = 10_000;

/// Ways that were gone for one request. What is above many links is looked at once.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// Paths at which there is something that is no link.
    plain: HashSet<Vec<u8>>,
}

impl Ways {
    /// Follows every link of a path. `None` where there is nothing at the end, or nothing that may be seen.
    pub(super) async fn follow(&mut self, files: &mut Files, path: &FilePath) -> Option<FilePath> {
        let root = FilePath::parse("/", User::User).ok()?;
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

    /// What the link at this path says; `None` within if it is no link.
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
