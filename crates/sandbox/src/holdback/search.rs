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
    /// These git directories and files `.git` with their inodes, and no others. Another directory may have been moved in the place of one.
    All(Vec<(Name, u64)>),
}

impl Known {
    /// Looks at a workspace before a sandbox begins.
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

/// What was found.
#[derive(Debug)]
pub(super) struct Found {
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
        let listed = open(workspace, path.as_bytes(), closed).and_then(|directory| list_if(&directory, tells));
        let (entries, length) = match listed {
            Ok(listed) => listed,
            // Gone, or put in its place, by a sandbox that still runs.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            // Another user's, and closed to the workspace's owner: to the sandbox too.
            Err(Errno::ACCESS | Errno::PERM) => continue,
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
        looked_at += length;
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
    if closed == Closed::Opened {
        // Without the right to search it, what is in it could be listed and not looked at.
        let place = open(OFlags::PATH)?;
        let mode = fstat(&place)?.st_mode & 0o7777;
        if mode & 0o500 != 0o500 {
            let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&place));
            // Another user's stays as it is, and is reported where it can't be opened.
            let _ = chmodat(rustix::fs::CWD, own.as_str(), Mode::from_raw_mode(mode | 0o700), AtFlags::empty());
        }
    }
    open(OFlags::RDONLY)
}

/// Whether a name may be of a repository, or of a directory that one is in.
fn tells(name: &[u8], kind: FileType) -> bool {
    kind == FileType::Directory || name == b"commondir" || SIGNS.contains(&name) || name.eq_ignore_ascii_case(b".git")
}

/// Names and what they are.
type Entries = Vec<(Vec<u8>, FileType)>;

/// What is in a directory.
pub(super) fn list(directory: &OwnedFd) -> Result<Entries, Errno> {
    list_if(directory, |_, _| true).map(|(entries, _)| entries)
}

/// What is in a directory and counts, and how many names it has in all.
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
