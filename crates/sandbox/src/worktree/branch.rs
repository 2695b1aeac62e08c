//! The branch of a worktree: what the sandbox committed, as it was kept.

use std::collections::BTreeSet;

use saggar_domain::SandboxId;
use serde::Serialize;

use super::object::{Commit, ObjectError, ObjectId, ObjectKind};
use super::repository::{Target, is_ref, target};
use super::store::Objects;
use crate::changes::{Change, Changes, Entry, Kind, Name};

/// Maximum number of commits that are listed.
const LISTED_MAX: usize = 1000;
/// Maximum number of commits that wait to be listed: each may name thousands.
const WAITING_MAX: usize = 100_000;
/// Bytes that may be read for the list.
const LISTED_WORK: u64 = 1 << 30;
/// Maximum length of a ref's file.
const REF_LEN_MAX: u64 = 4096;

/// The branch that applying makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NewBranch {
    /// Such as `saggar/sbx_…`.
    pub name: String,
    /// The new commits, the latest first; at most 1000.
    pub commits: Vec<NewCommit>,
}

/// A commit that the sandbox made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NewCommit {
    pub id: String,
    /// The first line of its message.
    pub subject: Name,
}

/// The name of the ref of a sandbox's branch.
pub(super) fn name_of(sandbox: &SandboxId) -> String {
    format!("refs/heads/saggar/{sandbox}")
}

impl Changes {
    /// Whether they are of a worktree.
    pub fn is_of_worktree(&self) -> bool {
        self.worktree().is_some()
    }

    /// Whether a path is in the git directory of the worktree. Nothing there is applied as a file.
    pub fn is_of_git(&self, entry: &Entry) -> bool {
        self.is_of_worktree() && entry.path.is_within(b".git")
    }

    /// The new commits of a worktree. What can't be read has no commits here; applying says why.
    pub fn branch(&self) -> Option<NewBranch> {
        let worktree = self.worktree()?;
        let name = name_of(self.id()).trim_start_matches("refs/heads/").to_owned();
        let mut commits = Vec::new();
        if let (Ok(objects), Some(tip)) = (Objects::kept(self), self.tip()) {
            let objects = objects.with_work(LISTED_WORK);
            let (mut waiting, mut seen) = (vec![tip], BTreeSet::new());
            while let Some(id) = waiting.pop() {
                if id == worktree.commit || !seen.insert(id) || commits.len() == LISTED_MAX {
                    continue;
                }
                // What isn't among the changes is the host's.
                let Ok(commit) = objects.commit(id) else { continue };
                let Commit { parents, subject, .. } = commit;
                commits.push(NewCommit { id: id.to_string(), subject: Name(subject) });
                let room = WAITING_MAX.saturating_sub(waiting.len());
                waiting.extend(parents.into_iter().take(room).rev());
            }
        }
        Some(NewBranch { name, commits })
    }

    /// The commit that the sandbox had checked out at its end: of its own branch, or of another that it made.
    pub(super) fn tip(&self) -> Option<ObjectId> {
        let own = name_of(self.id());
        let start = self.worktree()?.commit;
        let mut name = "HEAD".to_owned();
        for _ in 0..5 {
            let found = match self.git_file(&name) {
                Some(text) => target(&text)?,
                None if name == "HEAD" => Target::Ref(own.clone()),
                None if name == own => Target::Commit(start),
                None => Target::Commit(self.packed_ref(&name)?),
            };
            match found {
                Target::Commit(id) => return Some(id),
                Target::Ref(next) => name = next,
            }
        }
        None
    }

    /// A ref that `git gc` packed.
    fn packed_ref(&self, name: &str) -> Option<ObjectId> {
        let text = self.git_file("packed-refs")?;
        let line = text.split(|byte| *byte == b'\n').find(|line| line.get(41..) == Some(name.as_bytes()))?;
        ObjectId::parse(&line[..40]).filter(|_| is_ref(name))
    }

    /// A file of the git directory, if the sandbox changed it.
    fn git_file(&self, name: &str) -> Option<Vec<u8>> {
        let path = format!(".git/{name}");
        let entry = self.entries().iter().find(|entry| entry.path.as_bytes() == path.as_bytes())?;
        let is_there = entry.kind == Kind::File && entry.change != Change::Removed;
        let file = self.content(entry).ok().filter(|_| is_there)?;
        let len_max = if name == "packed-refs" { 64 << 20 } else { REF_LEN_MAX };
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(std::fs::File::from(file), len_max), &mut bytes).ok()?;
        Some(bytes)
    }

    /// A file of the commit that the worktree started from, in a repository of the host.
    pub(crate) fn at_start(&self, objects: &Objects<'_>, path: &[u8]) -> Result<Vec<u8>, ObjectError> {
        let start = self.worktree().map(|worktree| worktree.commit).ok_or(ObjectError::Pack)?;
        let mut at = objects.commit(start)?.tree;
        let mut kind = ObjectKind::Tree;
        for name in path.split(|byte| *byte == b'/') {
            let entry = objects.tree(at)?.into_iter().find(|entry| entry.name == name);
            let entry = entry.ok_or(ObjectError::Missing(at))?;
            kind = if entry.mode.bits() == 0o040_000 { ObjectKind::Tree } else { ObjectKind::Blob };
            at = entry.id;
        }
        if kind == ObjectKind::Blob { objects.of_kind(at, kind) } else { Err(ObjectError::Kind(at, "blob")) }
    }
}
