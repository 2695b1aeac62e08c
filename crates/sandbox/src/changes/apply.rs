//! Applies changes to the workspace: one path at a time, each only if the host's file is still the one the sandbox
//! started from.
//!
//! Links are never followed: parents are opened below the workspace without links, files are written beside their
//! target and renamed, all as the workspace's owner. Set-id bits were never kept, protected paths are refused, and a
//! refused change stays kept.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, Mode, OFlags, Stat, fchmod, fstat, linkat, mkdirat, openat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;
use saggar_domain::{Code, Problem};

use super::compare::{copy, open_directory};
use super::entry::{Base, Change, Entry, Kind, Name};
use super::guard::Guard;
use super::store::Changes;
use crate::acting::ActingAs;
use crate::data::DataDirectory;
use crate::host_tree::HostTree;
use crate::worktree::{Import, Imported, Repository};

/// Whether an entry is to be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    No,
    /// As one of several, or of all.
    Together,
    /// It was named explicitly. Entries that were held back are applied only then.
    ByName,
}

#[derive(Debug)]
pub struct Applied {
    pub path: Name,
    pub outcome: ApplyOutcome,
}

#[derive(Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// It was applied to the workspace.
    Done,
    /// The workspace is unchanged, and the entry is still kept.
    Refused(String),
}

/// What applying a worktree did.
#[derive(Debug)]
pub struct AppliedBranch {
    pub results: Vec<Applied>,
    /// The name of the branch and the commit that it leads to; `None` if there was nothing to make one of.
    pub branch: Option<(String, String)>,
}

impl Changes {
    /// Applies a worktree to a branch of the workspace's repository: its commits, and files that were not committed. The working tree
    /// isn't touched.
    pub fn apply_to_branch(
        self,
        data: &DataDirectory,
        workspace: &HostTree,
        wanted: impl Fn(&Entry) -> Wanted,
    ) -> Result<AppliedBranch, Problem> {
        let failed = |why: String| {
            Problem::new(
                Code::InvalidWorkspace,
                format!("the branch of the worktree was not made: {why}"),
                "the changes stay kept; `saggar changes diff` shows them, and `drop` forgets them",
            )
        };
        let repository = Repository::open(workspace)?;
        let import = Import::begin(&self, repository)?;
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec;
        let before = self.worktree().and_then(|worktree| worktree.branch);
        let Imported { results, tip } = import.apply(wanted, before, now).map_err(failed)?;
        let branch = tip.map(|tip| (format!("saggar/{}", self.id()), tip.to_string()));
        let done = results.iter().filter(|result| result.outcome == ApplyOutcome::Done);
        let done: Vec<Name> = done.map(|result| result.path.clone()).collect();
        self.forget_of_worktree(data, &done, tip).map_err(|error| failed(error.kind().to_string()))?;
        Ok(AppliedBranch { results, branch })
    }

    /// Applies the entries that `wanted` selects: parents before their contents, and removals deepest first.
    pub fn apply(
        self,
        data: &DataDirectory,
        workspace: &HostTree,
        guard: &Guard<'_>,
        wanted: impl Fn(&Entry) -> Wanted,
    ) -> std::io::Result<Vec<Applied>> {
        let picked = self.entries().iter().filter(|entry| wanted(entry) != Wanted::No);
        let (removals, rest): (Vec<&Entry>, Vec<&Entry>) = picked.partition(|entry| entry.change == Change::Removed);
        let owner = ActingAs::owner_of(workspace);
        let mut shared = Shared::of(self.entries());
        let mut results = Vec::new();
        for entry in removals.into_iter().rev().chain(rest) {
            let outcome = match self.apply_one(workspace, &owner, guard, entry, wanted(entry), &mut shared) {
                Ok(()) => ApplyOutcome::Done,
                Err(why) => ApplyOutcome::Refused(why),
            };
            results.push(Applied { path: entry.path.clone(), outcome });
        }
        drop(owner);
        let done: Vec<Name> = results
            .iter()
            .filter(|result| result.outcome == ApplyOutcome::Done)
            .map(|result| result.path.clone())
            .collect();
        self.forget(data, &done)?;
        Ok(results)
    }

    fn apply_one(
        &self,
        workspace: &HostTree,
        owner: &ActingAs,
        guard: &Guard<'_>,
        entry: &Entry,
        wanted: Wanted,
        shared: &mut Shared,
    ) -> Result<(), String> {
        let refused = match (entry.held, wanted) {
            (true, Wanted::ByName) => None,
            (true, Wanted::No | Wanted::Together) => Some(HELD),
            (false, _) => guard.refuses(entry),
        };
        if let Some(rule) = refused {
            return Err(rule.to_owned());
        }
        if entry.changed_on_host {
            return Err("the host changed it while the sandbox ran".to_owned());
        }
        let (parent, name) = entry.path.split();
        let parent = open_directory(workspace.fd.as_fd(), if parent == b"." { b"" } else { parent })
            .map_err(|errno| format!("its directory can't be opened without following a link: {errno}"))?;
        check_base(&parent, name, entry)?;
        let outcome = match (entry.change, entry.kind) {
            (Change::Removed, Kind::Directory) => unlinkat(&parent, name, AtFlags::REMOVEDIR),
            (Change::Removed, Kind::File | Kind::Link) => unlinkat(&parent, name, AtFlags::empty()),
            (Change::Mode, _) => change_mode(&parent, name, entry.mode),
            (Change::Added | Change::Modified, Kind::Directory) => {
                mkdirat(&parent, name, Mode::from_raw_mode(entry.mode))
                    .and_then(|()| change_mode(&parent, name, entry.mode))
            }
            (Change::Added | Change::Modified, Kind::Link) => put_link(&parent, name, entry),
            (Change::Added | Change::Modified, Kind::File) => match shared.link(workspace, &parent, entry) {
                Some(()) => put_beside(&parent, name, entry),
                None => self.put_file(owner, &parent, name, entry).map(|inode| shared.add(entry, inode)),
            },
        };
        outcome.map_err(|errno| errno.to_string())
    }

    /// Returns the file's inode.
    fn put_file(&self, owner: &ActingAs, parent: &OwnedFd, name: &[u8], entry: &Entry) -> Result<u64, Errno> {
        // Only we may read what is kept.
        let content = owner.as_ourselves(|| self.content(entry))?;
        let beside = beside(entry);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(parent, beside.as_str(), flags, Mode::from_raw_mode(0o600))?;
        let written = copy(&content, &file, entry.size, &|| Ok(()))
            .and_then(|()| fchmod(&file, Mode::from_raw_mode(entry.mode)))
            .and_then(|()| fstat(&file));
        let inode = written.inspect_err(|_| remove_beside(parent, &beside))?.st_ino;
        put_beside(parent, name, entry).map(|()| inode)
    }
}

/// Why an entry that was held back is not applied with the others.
const HELD: &str = "it was held back, because programs of the host would act on it: name it to apply it";

/// Files with several names: created once and then linked to the other names, so that applying takes no more space than
/// was kept.
struct Shared {
    /// The first name of each and its inode, once it is applied.
    placed: BTreeMap<u32, Option<(Name, u64)>>,
}

impl Shared {
    fn of(entries: &[Entry]) -> Self {
        let mut seen = BTreeSet::new();
        let again = entries.iter().filter_map(|entry| entry.blob).filter(|blob| !seen.insert(*blob));
        Self { placed: again.map(|blob| (blob, None)).collect() }
    }

    fn add(&mut self, entry: &Entry, inode: u64) {
        if let Some(place) = entry.blob.and_then(|blob| self.placed.get_mut(&blob)) {
            *place = Some((entry.path.clone(), inode));
        }
    }

    /// Links the file beside its target if another of its names was applied and is unchanged. Returns whether it did.
    fn link(&self, workspace: &HostTree, parent: &OwnedFd, entry: &Entry) -> Option<()> {
        let (first, inode) = self.placed.get(&entry.blob?)?.as_ref()?;
        let (directory, name) = first.split();
        let directory = open_directory(workspace.fd.as_fd(), if directory == b"." { b"" } else { directory }).ok()?;
        let beside = beside(entry);
        linkat(&directory, name, parent, beside.as_str(), AtFlags::empty()).ok()?;
        let is_same =
            statat(parent, beside.as_str(), AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| stat.st_ino == *inode);
        if !is_same {
            remove_beside(parent, &beside);
        }
        is_same.then_some(())
    }
}

fn put_beside(parent: &OwnedFd, name: &[u8], entry: &Entry) -> Result<(), Errno> {
    let beside = beside(entry);
    renameat(parent, beside.as_str(), parent, name).inspect_err(|_| remove_beside(parent, &beside))
}

fn put_link(parent: &OwnedFd, name: &[u8], entry: &Entry) -> Result<(), Errno> {
    let target = entry.target.as_ref().ok_or(Errno::INVAL)?;
    symlinkat(target.as_bytes(), parent, beside(entry).as_str())?;
    put_beside(parent, name, entry)
}

/// A name of our own in the same directory, so that the rename is atomic.
fn beside(entry: &Entry) -> String {
    format!(".saggar-apply-{}-{}", std::process::id(), entry.blob.unwrap_or(u32::MAX))
}

fn remove_beside(parent: &OwnedFd, beside: &str) {
    // The first failure is the one to report.
    let _ = unlinkat(parent, beside, AtFlags::empty());
}

/// Works by descriptor, so that a link put there in the meantime is never followed.
fn change_mode(parent: &OwnedFd, name: &[u8], mode: u32) -> Result<(), Errno> {
    let file =
        openat(parent, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    fchmod(&file, Mode::from_raw_mode(mode))
}

/// A directory changes whenever its contents do, so for directories only the identity counts.
fn check_base(parent: &OwnedFd, name: &[u8], entry: &Entry) -> Result<(), String> {
    let now: Option<Stat> = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Some(stat),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(errno.to_string()),
    };
    let same = match (now.as_ref().map(Base::of), entry.base) {
        (None, None) => true,
        (Some(now), Some(base)) if entry.held => now.size == base.size,
        (Some(now), Some(base)) if entry.kind == Kind::Directory => now.inode == base.inode,
        (Some(now), Some(base)) => now == base,
        (Some(_), None) | (None, Some(_)) => false,
    };
    if same { Ok(()) } else { Err("the host's file is no longer the one the sandbox started from".to_owned()) }
}
