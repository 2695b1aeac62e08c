//! Applying changes to the workspace: one path at a time, each only if the host still has there what the sandbox started from.
//!
//! Nothing is followed: parents are opened below the workspace without links, files are written beside their place and renamed
//! into it, all of it as the workspace's owner. Set-id bits were never kept, protected paths are refused, and whatever is refused stays kept.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, Stat, fchmod, mkdirat, openat, renameat, statat, symlinkat, unlinkat};
use rustix::io::Errno;

use super::compare::{copy, open_directory};
use super::entry::{Base, Change, Entry, Kind, Name};
use super::store::Changes;
use crate::acting::ActingAs;
use crate::data::DataDirectory;
use crate::host_tree::HostTree;

/// What became of one entry.
#[derive(Debug)]
pub struct Applied {
    /// Which.
    pub path: Name,
    /// What.
    pub outcome: Outcome,
}

/// What became of an entry.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The workspace has it.
    Done,
    /// The workspace is as it was, and the entry is still kept.
    Refused(String),
}

impl Changes {
    /// Applies the entries that `wanted` picks, parents before what is in them and removals deepest first.
    pub fn apply(
        self,
        data: &DataDirectory,
        workspace: &HostTree,
        wanted: impl Fn(&Entry) -> bool,
    ) -> std::io::Result<Vec<Applied>> {
        let (removals, rest): (Vec<&Entry>, Vec<&Entry>) =
            self.entries().iter().filter(|entry| wanted(entry)).partition(|entry| entry.change == Change::Removed);
        let owner = ActingAs::owner_of(workspace);
        let mut results = Vec::new();
        for entry in removals.into_iter().rev().chain(rest) {
            let outcome = match self.apply_one(workspace, entry) {
                Ok(()) => Outcome::Done,
                Err(why) => Outcome::Refused(why),
            };
            results.push(Applied { path: entry.path.clone(), outcome });
        }
        drop(owner);
        let done: Vec<Name> =
            results.iter().filter(|result| result.outcome == Outcome::Done).map(|result| result.path.clone()).collect();
        self.forget(data, &done)?;
        Ok(results)
    }

    fn apply_one(&self, workspace: &HostTree, entry: &Entry) -> Result<(), String> {
        if let Some(rule) = protected_by(entry) {
            return Err(format!("{rule}: the host's own programs act on it"));
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
            (Change::Added | Change::Modified, Kind::File) => self.put_file(&parent, name, entry),
        };
        outcome.map_err(|errno| errno.to_string())
    }

    fn put_file(&self, parent: &OwnedFd, name: &[u8], entry: &Entry) -> Result<(), Errno> {
        let content = self.content(entry)?;
        let beside = beside(entry);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(parent, beside.as_str(), flags, Mode::from_raw_mode(0o600))?;
        let written = copy(&content, &file, entry.size)
            .and_then(|()| fchmod(&file, Mode::from_raw_mode(entry.mode)))
            .and_then(|()| renameat(parent, beside.as_str(), parent, name));
        written.inspect_err(|_| remove_beside(parent, &beside))
    }
}

fn put_link(parent: &OwnedFd, name: &[u8], entry: &Entry) -> Result<(), Errno> {
    let target = entry.target.as_ref().ok_or(Errno::INVAL)?;
    let beside = beside(entry);
    symlinkat(target.as_bytes(), parent, beside.as_str())?;
    let put = renameat(parent, beside.as_str(), parent, name);
    put.inspect_err(|_| remove_beside(parent, &beside))
}

/// A name of our own in the same directory, so that the rename is one step.
fn beside(entry: &Entry) -> String {
    format!(".saggar-apply-{}-{}", std::process::id(), entry.blob.unwrap_or(u32::MAX))
}

fn remove_beside(parent: &OwnedFd, beside: &str) {
    // The first failure is the one to tell.
    let _ = unlinkat(parent, beside, AtFlags::empty());
}

/// By descriptor, so that a link put there meanwhile is never followed.
fn change_mode(parent: &OwnedFd, name: &[u8], mode: u32) -> Result<(), Errno> {
    let file =
        openat(parent, name, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    fchmod(&file, Mode::from_raw_mode(mode))
}

/// Directories change whenever something in them does, so of those only that they are still the same one counts.
fn check_base(parent: &OwnedFd, name: &[u8], entry: &Entry) -> Result<(), String> {
    let now: Option<Stat> = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Some(stat),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(errno.to_string()),
    };
    let same = match (now.as_ref().map(Base::of), entry.base) {
        (None, None) => true,
        (Some(now), Some(base)) if entry.kind == Kind::Directory => now.inode == base.inode,
        (Some(now), Some(base)) => now == base,
        (Some(_), None) | (None, Some(_)) => false,
    };
    if same { Ok(()) } else { Err("the host has something else there by now".to_owned()) }
}

/// What the host's own programs act on. Unlike in a workspace that is written directly, here every repository in the tree is covered,
/// because each path is looked at.
fn protected_by(entry: &Entry) -> Option<&'static str> {
    const GIT: &[&[u8]] = &[b"hooks", b"config", b"config.worktree", b"commondir", b"gitdir"];
    let mut parts = entry.path.as_bytes().split(|byte| *byte == b'/');
    if entry.path.is_within(b".saggar") {
        return Some(".saggar is protected");
    }
    parts.find(|part| *part == b".git")?;
    let mut below = parts.peekable();
    // A file or link called .git leads git to another directory.
    if below.peek().is_none() && entry.kind != Kind::Directory {
        return Some("a .git that is not a directory is protected");
    }
    below.any(|part| GIT.contains(&part)).then_some("git's configuration and hooks are protected")
}
