//! Finding repositories in a workspace: anything called `.git`, and directories that git takes for a repository without that name.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, chmodat, fstat, openat2, statat};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::changes::Name;
use crate::host_tree::HostTree;

const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Longest path that is looked at. git itself works in no directory with a longer one.
const PATH_MAX: usize = 4095;
/// Most names that are looked at before a start: it takes a microsecond for each.
const BEFORE_MAX: usize = 50_000;
/// Most repositories that are remembered of the start.
const KNOWN_MAX: usize = 2048;
/// Most names that are looked at after the end.
const AFTER_MAX: usize = 1_000_000;
/// What a git directory in `modules` has any of: one that lacks the rest may be made whole later.
const SIGNS: &[&[u8]] = &[b"HEAD", b"config", b"objects", b"refs", b"hooks"];

/// What a workspace had before a sandbox began. It is part of the sandbox's record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Before {
    pub(crate) known: Known,
    /// Paths that mounts hold: what is there is not the sandbox's.
    pub(crate) held: Vec<String>,
    /// Where the user's own settings say that hooks are, relative to each checkout.
    pub(crate) hooks: Vec<Name>,
    /// Names at the top that are absent and have no placeholder.
    pub(crate) absent: Vec<String>,
}

/// Which repositories a workspace had.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Known {
    /// Nobody looked, or there was too much to look at: what changed since is told by its time.
    #[default]
    Unknown,
    /// These git directories and files `.git`, and no others.
    All(Vec<Name>),
}

impl Known {
    /// Looks at a workspace before a sandbox begins.
    pub(crate) fn of(workspace: &HostTree) -> Self {
        let found = search(workspace, BEFORE_MAX, Closed::Left);
        let all: Vec<Name> = found.directories.into_iter().chain(found.files).collect();
        if found.is_complete && all.len() <= KNOWN_MAX { Self::All(all) } else { Self::Unknown }
    }
}

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
    /// Git directories.
    pub(super) directories: Vec<Name>,
    /// Files and links called `.git`.
    pub(super) files: Vec<Name>,
    /// Whether everything was looked at.
    pub(super) is_complete: bool,
}

/// Looks for repositories after the end of a sandbox, also where it closed a directory.
pub(super) fn after(workspace: &HostTree) -> Found {
    search(workspace, AFTER_MAX, Closed::Opened)
}

/// What is done about a directory whose mode keeps its owner out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Closed {
    Left,
    Opened,
}

/// What a directory may be besides an ordinary one, by where it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Ordinary,
    /// It is called `.git`.
    Git,
    /// Somewhere below `modules` of a git directory.
    InModules,
    /// `worktrees` of a git directory.
    Worktrees,
    /// Directly in there.
    Worktree,
}

/// Level by level: what is near the top is found however much lies below.
fn search(workspace: &HostTree, names_max: usize, closed: Closed) -> Found {
    let mut found = Found { directories: Vec::new(), files: Vec::new(), is_complete: true };
    let mut waiting = VecDeque::from([(Name(Vec::new()), Place::Ordinary)]);
    let mut looked_at = 0;
    while let Some((path, place)) = waiting.pop_front() {
        if path.as_bytes().len() > PATH_MAX {
            continue;
        }
        let entries = match open(workspace, path.as_bytes(), closed).and_then(|directory| list(&directory)) {
            Ok(entries) => entries,
            // Gone, or put in its place, by a sandbox that still runs.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(_) => {
                found.is_complete = false;
                continue;
            }
        };
        // A socket is a placeholder, which git takes for no part of a repository.
        let has = |name: &[u8]| entries.iter().any(|(other, kind)| other == name && *kind != FileType::Socket);
        let is_one = match place {
            // Told already where its name was seen.
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
        looked_at += entries.len();
        if looked_at > names_max {
            found.is_complete = false;
            break;
        }
    }
    found
}

/// What a directory is by its name and by what it is in; none where no repository is looked for.
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
    match open(OFlags::RDONLY) {
        Err(Errno::ACCESS) if closed == Closed::Opened => {
            let place = open(OFlags::PATH)?;
            let mode = fstat(&place)?.st_mode & 0o7777;
            let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&place));
            chmodat(rustix::fs::CWD, own.as_str(), Mode::from_raw_mode(mode | 0o700), AtFlags::empty())?;
            open(OFlags::RDONLY)
        }
        other => other,
    }
}

/// What is in a directory.
pub(super) fn list(directory: &OwnedFd) -> Result<Vec<(Vec<u8>, FileType)>, Errno> {
    let mut entries = Vec::new();
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
        entries.push((name.to_vec(), kind));
    }
    Ok(entries)
}
