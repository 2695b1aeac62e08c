//! Finds repositories in a workspace: anything called `.git`, and directories that git accepts as a repository without
//! that name.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, chmodat, fstat, openat2, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::changes::Name;
use crate::host_tree::HostTree;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Maximum length of a path that is examined. git itself doesn't work in directories with longer ones.
const PATH_MAX: usize = 4095;
/// Maximum number of names examined before a start: each takes a microsecond.
const BEFORE_MAX: usize = 50_000;
/// Maximum number of repositories remembered from the start.
const KNOWN_MAX: usize = 2048;
/// Maximum number of names examined after the end.
const AFTER_MAX: usize = 1_000_000;
/// Signs of a git directory in `modules`: one with any of these may be completed later.
const SIGNS: &[&[u8]] = &[b"HEAD", b"config", b"objects", b"refs", b"hooks"];

/// The state of a workspace before a sandbox started. It is part of the sandbox's record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Before {
    pub(crate) known: Known,
    /// Paths protected by mounts, which the sandbox can't have created.
    pub(crate) held: Vec<String>,
    /// Hook directories from the user's own settings, relative to each checkout.
    pub(crate) hooks: Vec<Name>,
    /// Names at the top that are absent and have no placeholder.
    pub(crate) absent: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Known {
    /// The workspace was not examined, or was too large: later changes are recognised by their time.
    #[default]
    Unknown,
    /// Exactly these git directories and `.git` files, with their inodes. Another directory may have been moved to the
    /// place of one.
    All(Vec<(Name, u64)>),
}

impl Known {
    /// Examines a workspace before a sandbox starts.
    pub(crate) fn of(workspace: &HostTree) -> Self {
        let found = search(workspace, BEFORE_MAX, Closed::Left);
        let all = found.directories.into_iter().chain(found.files);
        let all: Option<Vec<(Name, u64)>> = all.map(|name| Some((name.clone(), inode(workspace, &name)?))).collect();
        match all.filter(|all| found.is_complete && all.len() <= KNOWN_MAX) {
            Some(all) => Self::All(all),
            None => Self::Unknown,
        }
    }
}

fn inode(workspace: &HostTree, path: &Name) -> Option<u64> {
    let (above, name) = path.split();
    let above = open(workspace, if above == b"." { b"" } else { above }, Closed::Left).ok()?;
    let name = if name.is_empty() { b"." } else { name };
    statat(&above, name, AtFlags::SYMLINK_NOFOLLOW).ok().map(|stat| stat.st_ino)
}

#[derive(Debug)]
pub(super) struct Found {
    pub(super) directories: Vec<Name>,
    /// Files and links called `.git`.
    pub(super) files: Vec<Name>,
    /// Whether everything was examined.
    pub(super) is_complete: bool,
}

/// Searches for repositories after the end of a sandbox, even in directories that it closed.
pub(super) fn after(workspace: &HostTree) -> Found {
    search(workspace, AFTER_MAX, Closed::Opened)
}

/// What to do about a directory whose mode keeps its owner out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    Left,
    Opened,
}

/// What a directory may be, by its location.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Ordinary,
    /// It is called `.git`.
    Git,
    /// Somewhere below `modules` of a git directory.
    InModules,
    /// `worktrees` of a git directory.
    Worktrees,
    /// Directly in `worktrees`.
    Worktree,
}

/// Goes level by level, so that repositories near the top are found however much lies below.
fn search(workspace: &HostTree, names_max: usize, closed: Closed) -> Found {
    let mut found = Found { directories: Vec::new(), files: Vec::new(), is_complete: true };
    let mut waiting = VecDeque::from([(Name(Vec::new()), Place::Ordinary)]);
    let mut looked_at = 0;
    while let Some((path, place)) = waiting.pop_front() {
        if path.as_bytes().len() > PATH_MAX {
            continue;
        }
        let listed = open(workspace, path.as_bytes(), closed).and_then(|directory| list_if(&directory, tells));
        let (entries, length) = match listed {
            Ok(listed) => listed,
            // A sandbox that still runs removed or replaced it.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            // It belongs to another user and is closed to the workspace's owner, and so to the sandbox too.
            Err(Errno::ACCESS | Errno::PERM) => continue,
            Err(_) => {
                found.is_complete = false;
                continue;
            }
        };
        // A socket is a placeholder, which git doesn't accept as part of a repository.
        let has = |name: &[u8]| entries.iter().any(|(other, kind)| other == name && *kind != FileType::Socket);
        let is_one = match place {
            // Recorded already when its name was seen.
            Place::Git => true,
            Place::Worktree => true,
            Place::Worktrees => false,
            Place::InModules => SIGNS.iter().any(|sign| has(sign)),
            Place::Ordinary => has(b"HEAD") && (has(b"commondir") || (has(b"objects") && has(b"refs"))),
        };
        if is_one && place != Place::Git {
            found.directories.push(path.clone());
        }
        for (name, kind) in &entries {
            let child = path.join(name);
            let is_git = name.eq_ignore_ascii_case(b".git");
            match kind {
                FileType::Directory => {
                    if is_git {
                        found.directories.push(child.clone());
                    }
                    waiting.extend(below(place, is_one, name).map(|place| (child, place)));
                }
                FileType::RegularFile | FileType::Symlink if is_git => found.files.push(child),
                _ => {}
            }
        }
        looked_at += length;
        if looked_at > names_max {
            found.is_complete = false;
            break;
        }
    }
    found
}

/// What a directory is by its name and location; `None` if no repository is looked for there.
fn below(place: Place, is_one: bool, name: &[u8]) -> Option<Place> {
    match (place, name) {
        _ if name.eq_ignore_ascii_case(b".git") => Some(Place::Git),
        (_, b"modules") if is_one => Some(Place::InModules),
        (Place::Worktrees, _) => Some(Place::Worktree),
        (_, b"worktrees") if is_one => Some(Place::Worktrees),
        (_, b"objects") if is_one => None,
        (Place::Git | Place::Worktree, _) => None,
        (Place::InModules, b"refs" | b"logs" | b"info" | b"hooks") if is_one => None,
        (Place::InModules, _) => Some(Place::InModules),
        (Place::Ordinary, _) => Some(Place::Ordinary),
    }
}

/// Opens a directory of a workspace for listing.
pub(super) fn open(workspace: &HostTree, path: &[u8], closed: Closed) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { &b"."[..] } else { path };
    let open = |flags: OFlags| {
        openat2(workspace.fd.as_fd(), path, flags | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), RESOLVE)
    };
    if closed == Closed::Opened {
        // Without search permission its contents could be listed but not examined.
        let place = open(OFlags::PATH)?;
        let mode = fstat(&place)?.st_mode & 0o7777;
        if mode & 0o500 != 0o500 {
            let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&place));
            // A directory of another user stays as it is, and is reported if it can't be opened.
            let _ = chmodat(rustix::fs::CWD, own.as_str(), Mode::from_raw_mode(mode | 0o700), AtFlags::empty());
        }
    }
    open(OFlags::RDONLY)
}

/// Whether a name may belong to a repository, or to a directory that contains one.
fn tells(name: &[u8], kind: FileType) -> bool {
    kind == FileType::Directory || name == b"commondir" || SIGNS.contains(&name) || name.eq_ignore_ascii_case(b".git")
}

/// Names and file types.
type Entries = Vec<(Vec<u8>, FileType)>;

pub(super) fn list(directory: &OwnedFd) -> Result<Entries, Errno> {
    list_if(directory, |_, _| true).map(|(entries, _)| entries)
}

/// The relevant contents of a directory, and its total number of names.
fn list_if(directory: &OwnedFd, counts: fn(&[u8], FileType) -> bool) -> Result<(Entries, usize), Errno> {
    let mut entries = Vec::new();
    let mut length = 0;
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                FileType::from_raw_mode(statat(directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?.st_mode)
            }
            told => told,
        };
        length += 1;
        if counts(name, kind) {
            entries.push((name.to_vec(), kind));
        }
    }
    Ok((entries, length))
}
