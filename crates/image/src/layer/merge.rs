//! Several layers as one: what an overlay of them shows, and what they hide of the layers below them.
//!
//! A directory that hides what is below it, as it does in one of the layers, hides it in the merged one too. A directory above something
//! else does as well: between the two, what was there is gone.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, readlinkat, statat};
use rustix::io::Errno;
use saggar_domain::Problem;
use saggar_sandbox::STORE_IDS;

use super::content::{self, GoOn};
use super::entry_path::EntryPath;
use super::view::is_opaque;
use super::whiteout::is_whiteout;
use super::writer::Writer;
use super::{Ownership, attributes};
use crate::failure::storage;
use crate::limits::Budget;
use crate::tar::{Entry, Kind};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Writes the layers, the topmost first.
pub(super) fn write(
    layers: &[BorrowedFd<'_>],
    writer: &mut Writer,
    budget: &mut Budget,
    go_on: GoOn<'_>,
) -> Result<(), Problem> {
    let tops = layers.iter().map(|layer| openat2(layer, ".", DIRECTORY, Mode::empty(), RESOLVE));
    let tops = tops.collect::<Result<Vec<_>, _>>().map_err(unreadable)?;
    let mut merge = Merge { writer, budget, go_on, linked: HashMap::new() };
    let mut open = vec![merge.directory(Vec::new(), tops, false)?];
    while let Some(level) = open.last_mut() {
        let Some(name) = level.names.pop() else {
            open.pop();
            continue;
        };
        (merge.go_on)()?;
        if let Some(next) = merge.child(level, &name)? {
            open.push(next);
        }
    }
    Ok(())
}

struct Merge<'a> {
    writer: &'a mut Writer,
    budget: &'a mut Budget,
    go_on: GoOn<'a>,
    /// The first name of each file that has several, by inode. All layers are on one filesystem.
    linked: HashMap<u64, Vec<u8>>,
}

/// A directory of the merged layer, and what is left of it: the last name is next.
struct Level {
    path: Vec<u8>,
    /// The same directory in the layers that show it, the topmost first.
    parts: Vec<OwnedFd>,
    names: Vec<Vec<u8>>,
}

impl Merge<'_> {
    fn directory(&mut self, path: Vec<u8>, parts: Vec<OwnedFd>, hides: bool) -> Result<Level, Problem> {
        let top = parts.first().expect("a directory is in one layer at least");
        let mut kept = attributes::kept(top).map_err(unreadable)?;
        let stat = fstat(top).map_err(unreadable)?;
        self.budget.entry(path.len())?;
        self.writer.directory(&parse(&path)?, &entry(&stat, std::mem::take(&mut kept)), self.budget)?;
        if hides && !path.is_empty() {
            self.writer.opaque(&parse(&path)?)?;
        }
        let mut names = BTreeSet::new();
        for part in &parts {
            for found in Dir::read_from(part).map_err(unreadable)? {
                let name = found.map_err(unreadable)?.file_name().to_bytes().to_vec();
                if name != b"." && name != b".." {
                    names.insert(name);
                }
            }
        }
        Ok(Level { path, parts, names: names.into_iter().rev().collect() })
    }

    fn child(&mut self, level: &Level, name: &[u8]) -> Result<Option<Level>, Problem> {
        let path = if level.path.is_empty() { name.to_vec() } else { [&level.path, b"/".as_slice(), name].concat() };
        let mut directories: Vec<OwnedFd> = Vec::new();
        let mut hides = false;
        for part in &level.parts {
            let stat = match statat(part, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(unreadable(errno)),
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                let directory = openat2(part, name, DIRECTORY, Mode::empty(), RESOLVE).map_err(unreadable)?;
                hides = is_opaque(&directory);
                directories.push(directory);
                if hides {
                    break;
                }
                continue;
            }
            if directories.is_empty() {
                self.other(&path, part.as_fd(), name, &stat)?;
                return Ok(None);
            }
            hides = true;
            break;
        }
        if directories.is_empty() { Ok(None) } else { self.directory(path, directories, hides).map(Some) }
    }

    fn other(&mut self, path: &[u8], part: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> Result<(), Problem> {
        self.budget.entry(path.len())?;
        let place = parse(path)?;
        if is_whiteout(stat) {
            return self.writer.whiteout(&place, self.budget);
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                if stat.st_nlink > 1 {
                    if let Some(first) = self.linked.get(&stat.st_ino) {
                        return self.writer.hard_link(&place, first, self.budget);
                    }
                    self.linked.insert(stat.st_ino, path.to_vec());
                }
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let source = File::from(openat2(part, name, flags, Mode::empty(), RESOLVE).map_err(unreadable)?);
                let size = stat.st_size as u64;
                self.budget.content(size)?;
                let entry = entry(stat, attributes::kept(&source).map_err(unreadable)?);
                let target = self.writer.file(&place, self.budget)?;
                let (target, digest) = content::copy(&source, target, size, self.go_on)?;
                self.writer.finish_file(&target, &entry, digest)
            }
            FileType::Symlink => {
                let target = readlinkat(part, name, Vec::new()).map_err(unreadable)?.into_bytes();
                self.writer.link(&place, &target, &entry(stat, Vec::new()), self.budget)
            }
            FileType::Fifo => self.writer.fifo(&place, &entry(stat, Vec::new()), self.budget),
            // No layer has any.
            FileType::Directory
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Socket
            | FileType::Unknown => Ok(()),
        }
    }
}

fn entry(stat: &Stat, attributes: Vec<attributes::Attribute>) -> Entry {
    let id = |id: u32| match Ownership::here() {
        Ownership::Shifted => u64::from(id.wrapping_sub(STORE_IDS.start)),
        Ownership::Dropped => 0,
    };
    Entry {
        path: Vec::new(),
        kind: Kind::Directory,
        mode: stat.st_mode & 0o7777,
        uid: id(stat.st_uid),
        gid: id(stat.st_gid),
        modified: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        attributes,
        attributes_unread: 0,
    }
}

fn parse(path: &[u8]) -> Result<EntryPath, Problem> {
    EntryPath::parse(path).map_err(|why| storage(&format!("a stored layer is damaged: an entry {why}"), Errno::INVAL))
}

fn unreadable(errno: Errno) -> Problem {
    storage("a stored layer can't be read", errno)
}
