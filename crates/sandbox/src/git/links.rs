//! Links in git directories: git creates none there, and writes through any it finds, out of the workspace.
//!
//! The kernel can't stop a program from creating a link beside files that it may create. So once a sandbox is dead,
//! links newer than it are removed from the git directories it could write, before its end is reported.
//!
//! If the workspace is a git directory itself, the age is not enough: a directory that contains an older link may have
//! been moved among git's own files, and the link is as old as before. (Any other git directory is a mount of its own,
//! and nothing can be moved into it.) In this case the links that exist at the start are listed, and all others
//! removed.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, statat, unlinkat};
use rustix::io::Errno;

use crate::acting::ActingAs;
use crate::changes::Name;
use crate::host_tree::HostTree;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Tolerance for filesystem clocks that lag.
const SLACK_NS: i128 = 1_000_000_000;
/// Maximum number of directories examined.
const DIRECTORIES_MAX: usize = 1 << 20;
/// A workspace that is a git directory itself may contain other files too: only what git writes is examined.
const AT_TOP: &[&[u8]] = &[
    b"COMMIT_EDITMSG",
    b"FETCH_HEAD",
    b"HEAD",
    b"ORIG_HEAD",
    b"index",
    b"info",
    b"logs",
    b"modules",
    b"objects",
    b"packed-refs",
    b"refs",
    b"worktrees",
];
/// Number of names in a message.
const NAMED_MAX: usize = 8;
/// Maximum number of links that a workspace may have among git's own files at the start.
const KNOWN_MAX: usize = 1024;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    pub(crate) count: usize,
    /// The first of them, relative to the workspace, as text.
    pub(crate) names: Vec<String>,
    /// Whether something could not be examined or removed.
    pub(crate) is_incomplete: bool,
}

/// Links of a workspace that is a git directory itself, as far as git would follow them.
pub(super) fn of_bare(workspace: &HostTree) -> Result<Vec<Name>, Errno> {
    let mut links = Vec::new();
    let mut waiting = vec![Vec::new()];
    let mut looked_into = 0;
    while let Some(path) = waiting.pop() {
        looked_into += 1;
        let opened = match open(workspace, &path, Closed::Refused) {
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            other => other?.0,
        };
        list(&opened, &path, &mut waiting, |_, whole| {
            links.push(Name(whole.to_vec()));
            Ok(())
        })?;
        if links.len() > KNOWN_MAX || looked_into > DIRECTORIES_MAX {
            return Err(Errno::TOOBIG);
        }
    }
    Ok(links)
}

/// Removes links created since then, by the wall clock, from git directories of a workspace. If one of them is the
/// workspace itself, removes all links but the `known` ones.
pub(crate) fn remove_new_links(
    workspace: &HostTree,
    directories: &[String],
    known: &[Name],
    since_ns: i128,
) -> Removed {
    let _owner = ActingAs::owner_of(workspace);
    let is_bare = directories.iter().any(String::is_empty);
    let mut removed = Removed::default();
    let is_in_another = |name: &String| {
        let holds = |other: &String| other.is_empty() || name.starts_with(&format!("{other}/"));
        directories.iter().any(|other| other != name && holds(other))
    };
    let mut waiting: Vec<Vec<u8>> =
        directories.iter().filter(|name| !is_in_another(name)).map(|name| name.clone().into_bytes()).collect();
    // Hooks were protected: a link in there was not created by the sandbox.
    let held: Vec<Vec<u8>> = directories.iter().map(|name| format!("{name}/hooks").into_bytes()).collect();
    let since_ns = since_ns - SLACK_NS;
    let mut looked_into = 0;
    while let Some(path) = waiting.pop() {
        if held.contains(&path) {
            continue;
        }
        looked_into += 1;
        if looked_into > DIRECTORIES_MAX {
            removed.is_incomplete = true;
            break;
        }
        let (directory, stat) = match open(workspace, &path, Closed::Opened) {
            Ok(opened) => opened,
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            Err(_) => {
                removed.is_incomplete = true;
                continue;
            }
        };
        // Nothing was created in it, and it has no subdirectories in which something could have been created.
        if !is_bare && changed_ns(&stat) < since_ns && stat.st_nlink == 2 {
            continue;
        }
        let mut failed = false;
        let listed = list(&directory, &path, &mut waiting, |name, whole| {
            let is_theirs = if is_bare {
                known.iter().any(|known| known.as_bytes() == whole)
            } else {
                changed_ns(&statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?) < since_ns
            };
            if !is_theirs {
                failed |= removed.remove(&directory, name, whole).is_err();
            }
            Ok(())
        });
        removed.is_incomplete |= failed || listed.is_err();
    }
    removed
}

impl Removed {
    fn remove(&mut self, directory: &OwnedFd, name: &CStr, whole: &[u8]) -> Result<(), Errno> {
        unlinkat(directory, name, AtFlags::empty())?;
        self.count += 1;
        if self.names.len() < NAMED_MAX {
            self.names.push(String::from_utf8_lossy(whole).into_owned());
        }
        Ok(())
    }
}

/// Lists one directory: subdirectories are queued, and links are passed to `link`, by name and full path.
fn list(
    directory: &OwnedFd,
    path: &[u8],
    waiting: &mut Vec<Vec<u8>>,
    mut link: impl FnMut(&CStr, &[u8]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if path.is_empty() && !AT_TOP.contains(&name.to_bytes()) {
            continue;
        }
        let whole = if path.is_empty() { name.to_bytes().to_vec() } else { [path, b"/", name.to_bytes()].concat() };
        let kind = match entry.file_type() {
            FileType::Unknown => FileType::from_raw_mode(statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode),
            told => told,
        };
        match kind {
            FileType::Directory => waiting.push(whole),
            FileType::Symlink => link(name, &whole)?,
            _ => {}
        }
    }
    Ok(())
}

/// What to do about a directory whose mode keeps us out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closed {
    /// Nothing: it can't be examined.
    Refused,
    /// The sandbox may have closed it, so its mode is changed.
    Opened,
}

/// Opens a directory for listing and removing.
fn open(workspace: &HostTree, path: &[u8], closed: Closed) -> Result<(OwnedFd, Stat), Errno> {
    let path = if path.is_empty() { &b"."[..] } else { path };
    let open = |flags: OFlags| {
        openat2(workspace.fd.as_fd(), path, flags | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), RESOLVE)
    };
    let stat = fstat(&open(OFlags::PATH)?)?;
    if stat.st_mode & 0o700 != 0o700 && closed == Closed::Opened {
        let place = open(OFlags::PATH)?;
        let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&place));
        rustix::fs::chmod(own.as_str(), Mode::from_raw_mode(stat.st_mode & 0o7777 | 0o700))?;
    }
    Ok((open(OFlags::RDONLY)?, stat))
}

fn changed_ns(stat: &Stat) -> i128 {
    i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec as i64)
}
