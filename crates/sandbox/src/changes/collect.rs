//! Collects a list of changes from an overlay's upper layer.
//!
//! The layer contains what was written, not what changed: a file that was only touched is in it completely. So each
//! entry is compared with the host's file below, and identical ones are left out.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Stat, fgetxattr, readlinkat, statat};
use rustix::io::Errno;

use super::compare::{GoOn, is_same, open_directory, open_file};
use super::entry::{Base, Change, Entry, Kind, Name};
use super::store::Pending;
use crate::host_tree::HostTree;

/// Maximum length of a path that one call can open.
const PATH_MAX: usize = 4095;
/// Set-id and sticky bits never leave a sandbox.
const MODE_MASK: u32 = 0o777;

/// Walks the layer and adds the changes to `pending`.
pub(crate) fn collect(
    layer: &OwnedFd,
    workspace: &HostTree,
    started_ns: i128,
    pending: &mut Pending,
    go_on: GoOn<'_>,
) -> std::io::Result<()> {
    let lower = open_directory(workspace.fd.as_fd(), b"")?;
    let waiting = vec![Name(Vec::new())];
    let mut walk = Walk { upper: layer.as_fd(), lower: lower.as_fd(), started_ns, waiting, pending, go_on, workspace };
    while let Some(directory) = walk.waiting.pop() {
        walk.directory(&directory)?;
    }
    walk.pending.entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(())
}

struct Walk<'a> {
    upper: BorrowedFd<'a>,
    lower: BorrowedFd<'a>,
    started_ns: i128,
    waiting: Vec<Name>,
    pending: &'a mut Pending,
    go_on: GoOn<'a>,
    workspace: &'a HostTree,
}

impl Walk<'_> {
    fn directory(&mut self, path: &Name) -> std::io::Result<()> {
        let directory = match open_directory(self.upper, path.as_bytes()) {
            Ok(directory) => directory,
            Err(errno) => return self.skip(path, &format!("its changes can't be listed: {errno}")),
        };
        let is_opaque = has_mark(&directory, "user.overlay.opaque", b"y");
        let mut seen = BTreeSet::new();
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            (self.go_on)()?;
            let child = path.join(name);
            if is_opaque {
                seen.insert(name.to_vec());
            }
            if child.as_bytes().len() > PATH_MAX || !self.pending.has_room(&child) {
                self.skip(&child, "its path is too long, or there are too many changes")?;
                continue;
            }
            let stat = statat(&directory, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
            self.child(&child, &directory, name, &stat)?;
        }
        if is_opaque {
            self.removed_below(path, &seen)?;
        }
        Ok(())
    }

    fn child(&mut self, path: &Name, directory: &OwnedFd, name: &[u8], stat: &Stat) -> std::io::Result<()> {
        let below = self.below(path);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::CharacterDevice if stat.st_rdev == 0 => self.removed(path),
            FileType::Directory if below.is_none_or(|below| is(&below, FileType::Directory)) => {
                self.waiting.push(path.clone());
                match below {
                    Some(below) => self.mode_only(path, Kind::Directory, stat, &below),
                    None => {
                        self.add(path, Change::Added, Kind::Directory, stat, None, None, None);
                        Ok(())
                    }
                }
            }
            FileType::Directory => self.skip(path, "a directory replaced something that was not one"),
            _ if below.is_some_and(|below| is(&below, FileType::Directory)) => {
                self.skip(path, "it replaced a directory")
            }
            FileType::RegularFile => self.file(path, stat, below),
            FileType::Symlink => {
                let target = Name(readlinkat(directory, name, Vec::new())?.into_bytes());
                let was = below.filter(|below| is(below, FileType::Symlink));
                let same = was.is_some() && self.lower_link(path).is_some_and(|old| old == target);
                if !same {
                    let change = if below.is_some() { Change::Modified } else { Change::Added };
                    self.add(path, change, Kind::Link, stat, None, Some(target), below);
                }
                Ok(())
            }
            other => self.skip(path, &format!("a special file ({other:?}) never leaves a sandbox")),
        }
    }

    fn file(&mut self, path: &Name, stat: &Stat, below: Option<Stat>) -> std::io::Result<()> {
        let file = match open_file(self.upper, path.as_bytes()) {
            Ok(file) => file,
            Err(errno) => return self.skip(path, &format!("it can't be read: {errno}")),
        };
        // An empty file with this attribute is how newer kernels mark a removal where device nodes can't be created.
        if stat.st_size == 0 && has_mark(&file, "user.overlay.whiteout", b"") {
            return self.removed(path);
        }
        let was_file = below.filter(|below| is(below, FileType::RegularFile));
        if let Some(was) = was_file
            && was.st_size == stat.st_size
            && self.is_as_below(path, &file)?
        {
            return self.mode_only(path, Kind::File, stat, &was);
        }
        let blob = match self.pending.keep(&file, stat, self.go_on) {
            Ok(blob) => blob,
            // For example, its name is too long for the filesystem that holds the kept changes. The others can still be
            // kept.
            Err(errno) if !is_of_all(errno) => return self.skip(path, &format!("it can't be kept: {errno}")),
            Err(errno) => return Err(errno.into()),
        };
        let change = if below.is_some() { Change::Modified } else { Change::Added };
        self.add(path, change, Kind::File, stat, Some(blob), None, below);
        Ok(())
    }

    fn is_as_below(&self, path: &Name, file: &OwnedFd) -> std::io::Result<bool> {
        // Whether a file is as it was is told only of what the user could read.
        let acting = self.workspace.acting();
        let old = open_file(self.lower, path.as_bytes());
        drop(acting);
        match old.and_then(|old| is_same(file, &old, self.go_on)) {
            Ok(is_same) => Ok(is_same),
            Err(errno @ (Errno::CANCELED | Errno::TIMEDOUT)) => Err(errno.into()),
            Err(_) => Ok(false),
        }
    }

    fn mode_only(&mut self, path: &Name, kind: Kind, stat: &Stat, below: &Stat) -> std::io::Result<()> {
        if (stat.st_mode ^ below.st_mode) & MODE_MASK != 0 {
            self.add(path, Change::Mode, kind, stat, None, None, Some(*below));
        }
        Ok(())
    }

    /// A removed path and, for a directory, everything that was in it. Removals are applied deepest first.
    fn removed(&mut self, path: &Name) -> std::io::Result<()> {
        let Some(below) = self.below(path) else { return Ok(()) };
        let kind = match FileType::from_raw_mode(below.st_mode) {
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Link,
            FileType::RegularFile => Kind::File,
            other => return self.skip(path, &format!("a special file ({other:?}) of the host is left as it is")),
        };
        self.add(path, Change::Removed, kind, &below, None, None, Some(below));
        if kind == Kind::Directory { self.removed_below(path, &BTreeSet::new()) } else { Ok(()) }
    }

    /// The host's entries in a directory that the sandbox no longer sees. Doesn't recurse, because the program controls
    /// the depth.
    fn removed_below(&mut self, path: &Name, kept: &BTreeSet<Vec<u8>>) -> std::io::Result<()> {
        let mut waiting = vec![path.clone()];
        while let Some(directory) = waiting.pop() {
            let Ok(fd) = open_directory(self.lower, directory.as_bytes()) else { continue };
            for entry in Dir::read_from(&fd)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                let is_kept = directory == *path && kept.contains(name);
                if name == b"." || name == b".." || is_kept {
                    continue;
                }
                (self.go_on)()?;
                let child = directory.join(name);
                if !self.pending.has_room(&child) {
                    self.skip(&child, "there are too many changes")?;
                    continue;
                }
                let Some(below) = self.below(&child) else { continue };
                let kind = match FileType::from_raw_mode(below.st_mode) {
                    FileType::Directory => {
                        waiting.push(child.clone());
                        Kind::Directory
                    }
                    FileType::Symlink => Kind::Link,
                    FileType::RegularFile => Kind::File,
                    _ => continue,
                };
                self.add(&child, Change::Removed, kind, &below, None, None, Some(below));
            }
        }
        Ok(())
    }

    fn below(&self, path: &Name) -> Option<Stat> {
        let (parent, name) = path.split();
        let parent = open_directory(self.lower, if parent == b"." { b"" } else { parent }).ok()?;
        statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    fn lower_link(&self, path: &Name) -> Option<Name> {
        let (parent, name) = path.split();
        let parent = open_directory(self.lower, if parent == b"." { b"" } else { parent }).ok()?;
        readlinkat(&parent, name, Vec::new()).ok().map(|target| Name(target.into_bytes()))
    }

    #[expect(clippy::too_many_arguments, reason = "one entry, field by field")]
    fn add(
        &mut self,
        path: &Name,
        change: Change,
        kind: Kind,
        stat: &Stat,
        blob: Option<u32>,
        target: Option<Name>,
        below: Option<Stat>,
    ) {
        let base = below.as_ref().map(Base::of);
        self.pending.add(Entry {
            path: path.clone(),
            change,
            kind,
            mode: stat.st_mode & MODE_MASK,
            size: if kind == Kind::File { stat.st_size as u64 } else { 0 },
            blob,
            target,
            base,
            changed_on_host: base.is_some_and(|base| kind != Kind::Directory && base.changed_ns > self.started_ns),
            held: false,
        });
    }

    fn skip(&mut self, path: &Name, why: &str) -> std::io::Result<()> {
        self.pending.skip(path, why);
        Ok(())
    }
}

/// Whether an error while keeping one file would affect every file.
fn is_of_all(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOSPC
            | Errno::DQUOT
            | Errno::ROFS
            | Errno::IO
            | Errno::NOMEM
            | Errno::MFILE
            | Errno::NFILE
            | Errno::CANCELED
            | Errno::TIMEDOUT
    )
}

fn is(stat: &Stat, kind: FileType) -> bool {
    FileType::from_raw_mode(stat.st_mode) == kind
}

/// Whether the overlay set this attribute on a file or directory. If it can't be read it counts as unset: then more
/// shows as changed, never less.
fn has_mark(fd: &OwnedFd, name: &str, value: &[u8]) -> bool {
    let mut found = [0u8; 8];
    fgetxattr(fd, name, &mut found).is_ok_and(|length| value.is_empty() || &found[..length] == value)
}
