//! Changes that are never applied: protected paths, and files that the host's git would act on.
//!
//! Unlike in a workspace that is written directly, each path is checked here, so every repository in the tree is
//! covered, including those that the changes would create. A change may be one half of a repository whose other half
//! was applied earlier or will be applied later, so the host's files and all of these changes are considered together.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, statat};
use saggar_domain::Problem;

use super::compare::open_directory;
use super::entry::{Change, Entry, Kind, Name};
use super::store::Changes;
use crate::git;
use crate::host_tree::HostTree;

/// Files that git obeys in a git directory, or uses to find others.
const OBEYED: &[&[u8]] = &[b"hooks", b"config", b"config.worktree", b"commondir", b"gitdir"];
/// The older formats for remotes, which decide where the next `git push` or `git fetch` goes.
const REMOTES: &[&[u8]] = &[b"remotes", b"branches"];
/// Files in `objects/info` that name further places for objects.
const ALTERNATES: &[&[u8]] = &[b"alternates", b"http-alternates"];
/// Directories with lists of commands that git runs when the operator continues an operation in progress.
const BEGUN: &[&[u8]] = &[b"rebase-merge", b"rebase-apply"];
/// Entries that make a directory a git directory, and others that it has.
const MAKES: &[&[u8]] = &[b"HEAD", b"objects", b"refs", b"commondir"];
const HAS: &[&[u8]] = &[b"info", b"logs", b"modules", b"worktrees"];

/// Decides which changes may be applied to a workspace.
#[derive(Debug)]
pub struct Guard<'a> {
    workspace: &'a HostTree,
    protected: BTreeSet<Vec<u8>>,
    /// Paths that the changes create.
    put: BTreeSet<Vec<u8>>,
    /// Directories checked so far: whether each is a git directory, and whether it would become one.
    known: RefCell<BTreeMap<Vec<u8>, (bool, bool)>>,
}

impl Changes {
    /// The guard for these changes: it covers paths that were protected when the sandbox ran, and those that are
    /// protected now.
    pub fn guard<'a>(&self, workspace: &'a HostTree) -> Result<Guard<'a>, Problem> {
        let unclear =
            |problem: Problem| Problem { help: "repair it by hand; the changes stay kept".to_owned(), ..problem };
        let now = git::examine(workspace).map_err(unclear)?.paths;
        let protected = self.protected().iter().map(String::as_str).chain(now.iter().map(|path| path.as_str()));
        let put = self.entries().iter().filter(|entry| entry.change != Change::Removed);
        Ok(Guard {
            workspace,
            protected: protected.map(|path| path.trim_end_matches('/').as_bytes().to_vec()).collect(),
            put: put.map(|entry| entry.path.as_bytes().to_vec()).collect(),
            known: RefCell::default(),
        })
    }
}

impl Guard<'_> {
    /// Why an entry is not applied, if it isn't.
    pub fn refuses(&self, entry: &Entry) -> Option<&'static str> {
        if entry.path.is_within(b".saggar") {
            return Some(".saggar is protected: the host's own programs act on it");
        }
        if self.is_protected(entry) {
            return Some("it is a protected path");
        }
        let parts: Vec<&[u8]> = entry.path.as_bytes().split(|byte| *byte == b'/').collect();
        match parts.iter().position(|part| part.eq_ignore_ascii_case(b".git")) {
            Some(at) => in_git_directory(entry, &parts[at + 1..]),
            None => self.makes_repository(entry, &parts),
        }
    }

    /// Whether it is a protected path, lies below one, or would remove a directory that contains one.
    fn is_protected(&self, entry: &Entry) -> bool {
        let path = entry.path.as_bytes();
        let is_within = (1..=path.len())
            .filter(|end| path.get(*end).is_none_or(|byte| *byte == b'/'))
            .any(|end| self.protected.contains(&path[..end]));
        let is_above = || {
            let below = [path, b"/"].concat();
            self.protected.range(below.clone()..).next().is_some_and(|protected| protected.starts_with(&below))
        };
        let stays_directory = entry.kind == Kind::Directory && entry.change != Change::Removed;
        is_within || (!stays_directory && is_above())
    }

    /// Repositories without a `.git`: files that git obeys in one, and files that would make one.
    fn makes_repository(&self, entry: &Entry, parts: &[&[u8]]) -> Option<&'static str> {
        for (at, part) in parts.iter().enumerate() {
            let is_obeyed = OBEYED.contains(part) || *part == b"HEAD" || redirects(&parts[at..]);
            let is_part = is_obeyed || MAKES.contains(part) || HAS.contains(part);
            if !is_part {
                continue;
            }
            let (is_one, would_be_one) = self.is_repository(&parts[..at].join(&b'/'));
            if is_one && is_obeyed {
                return Some("the configuration, hooks and HEAD of a bare repository are protected");
            }
            if is_one && entry.kind == Kind::Link {
                return Some("git creates no links in a repository, and would write through one");
            }
            if would_be_one && !is_one && (is_obeyed || MAKES.contains(part)) {
                return Some("it would turn its directory into a bare repository");
            }
        }
        None
    }

    fn is_repository(&self, directory: &[u8]) -> (bool, bool) {
        if let Some(known) = self.known.borrow().get(directory) {
            return *known;
        }
        let directory_fd = open_directory(self.workspace.fd.as_fd(), directory).ok();
        let is_there =
            |name: &[u8]| directory_fd.as_ref().is_some_and(|fd| statat(fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok());
        let is_put = |name: &[u8]| self.put.contains(Name(directory.to_vec()).join(name).as_bytes());
        let is_one =
            |has: &dyn Fn(&[u8]) -> bool| has(b"HEAD") && (has(b"commondir") || (has(b"objects") && has(b"refs")));
        let found = (is_one(&is_there), is_one(&|name| is_there(name) || is_put(name)));
        self.known.borrow_mut().insert(directory.to_vec(), found);
        found
    }
}

/// Whether a path in a git directory decides where git pushes to, fetches from or finds objects. Such names in `refs`
/// and `logs` are branches.
fn redirects(parts: &[&[u8]]) -> bool {
    match parts {
        [b"objects", b"info", last] => ALTERNATES.contains(last),
        [first, _, ..] => REMOTES.contains(first),
        _ => false,
    }
}

/// An entry at or below a `.git`.
fn in_git_directory(entry: &Entry, below: &[&[u8]]) -> Option<&'static str> {
    if below.is_empty() {
        // A file or link points git to another directory.
        let is_other = entry.kind != Kind::Directory;
        return is_other.then_some("a .git that is not a directory is protected: the host's own programs act on it");
    }
    if below.iter().any(|part| OBEYED.contains(part)) {
        return Some("git's configuration and hooks are protected: the host's own programs act on it");
    }
    let is_direct = |at: usize| !below[..at].iter().any(|part| matches!(*part, b"refs" | b"logs"));
    if (0..below.len()).any(|at| is_direct(at) && redirects(&below[at..])) {
        return Some("settings of where git pushes to and fetches from are protected");
    }
    if below.iter().any(|part| BEGUN.contains(part)) {
        return Some("a rebase in progress is protected: git would run its commands");
    }
    if entry.kind == Kind::Link && entry.change != Change::Removed {
        return Some("git creates no links in a repository, and would write through one");
    }
    let is_head =
        below.last() == Some(&&b"HEAD"[..]) && !below.contains(&&b"logs"[..]) && !below.contains(&&b"refs"[..]);
    (is_head && entry.change == Change::Removed)
        .then_some("without HEAD git would use another directory as the repository")
}
