//! The digest of a layer as it is on disk: names, kinds, permissions, owners, times, attributes and contents.
//!
//! Computed when a layer is written and again when it is checked, by the same walk. Directories are read in the order
//! of names, so the digest doesn't depend on the filesystem. The walk keeps one directory open per level and doesn't
//! recurse.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, readlinkat, statat};
use rustix::io::Errno;
use saggar_domain::template::ContentDigest;
use saggar_sandbox::STORE_IDS;
use sha2::{Digest, Sha256};

use super::{Ownership, attributes};

/// Hashed first, so that a change of the form changes every digest.
const FORM: &[u8] = b"saggar.tree/v1\0";
const CHUNK: usize = 128 << 10;
/// Deeper than any layer that was written here.
const DEPTH_MAX: usize = 256;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TreeDigest {
    pub(crate) digest: ContentDigest,
    /// Everything in the tree, its top included.
    pub(crate) entries: u64,
    /// Of all files, each counted once.
    pub(crate) bytes: u64,
}

/// Where the digests of files' contents come from.
pub(crate) enum Contents<'a> {
    /// Computed while they were written, by inode.
    Known(&'a HashMap<u64, [u8; 32]>),
    /// Read from the disk.
    Read,
}

impl TreeDigest {
    pub(crate) fn of(root: BorrowedFd<'_>, contents: Contents<'_>, ownership: Ownership) -> io::Result<Self> {
        let mut walk = Walk {
            hash: Sha256::new(),
            contents,
            ownership,
            linked: HashMap::new(),
            entries: 0,
            bytes: 0,
            buffer: vec![0; CHUNK],
        };
        walk.hash.update(FORM);
        let top = openat2(root, ".", DIRECTORY, Mode::empty(), RESOLVE)?;
        walk.entry(b"", &fstat(&top)?, top.as_fd(), b".")?;
        let mut open = vec![Level::new(top)?];
        while let Some(level) = open.last_mut() {
            let Some(name) = level.names.pop() else {
                // The end of a directory is hashed too, so that nothing can move from one into another.
                walk.hash.update([0xff]);
                open.pop();
                continue;
            };
            let stat = statat(&level.directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                walk.entry(&name, &stat, level.directory.as_fd(), &name)?;
                continue;
            }
            let directory = openat2(&level.directory, name.as_slice(), DIRECTORY, Mode::empty(), RESOLVE)?;
            if open.len() >= DEPTH_MAX {
                return Err(Errno::NAMETOOLONG.into());
            }
            walk.entry(&name, &stat, directory.as_fd(), b".")?;
            open.push(Level::new(directory)?);
        }
        let digest = ContentDigest::from_bytes(walk.hash.finalize().into());
        Ok(Self { digest, entries: walk.entries, bytes: walk.bytes })
    }
}

/// An open directory, and what is left of it: the last name is next.
struct Level {
    directory: OwnedFd,
    names: Vec<Vec<u8>>,
}

impl Level {
    fn new(directory: OwnedFd) -> io::Result<Self> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Self { directory, names })
    }
}

struct Walk<'a> {
    hash: Sha256,
    contents: Contents<'a>,
    ownership: Ownership,
    /// Files with several names: the number of the first entry of each.
    linked: HashMap<u64, u64>,
    entries: u64,
    bytes: u64,
    buffer: Vec<u8>,
}

impl Walk<'_> {
    /// Hashes one entry. `at` and `last` lead to it; `name` is what it is called.
    fn entry(&mut self, name: &[u8], stat: &Stat, at: BorrowedFd<'_>, last: &[u8]) -> io::Result<()> {
        self.entries += 1;
        self.text(name);
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::Directory && stat.st_nlink > 1 {
            if let Some(first) = self.linked.get(&stat.st_ino).copied() {
                self.hash.update([1]);
                self.number(first);
                return Ok(());
            }
            self.linked.insert(stat.st_ino, self.entries);
        }
        self.hash.update([0]);
        self.number(u64::from(stat.st_mode));
        for id in [stat.st_uid, stat.st_gid] {
            // An id outside of the range can't be one that was written here; it wraps, and differs from all of them.
            let id = match self.ownership {
                Ownership::Shifted => id.wrapping_sub(STORE_IDS.start),
                Ownership::Dropped => 0,
            };
            self.number(u64::from(id));
        }
        self.number(stat.st_mtime as u64);
        self.number(stat.st_mtime_nsec);
        match kind {
            FileType::RegularFile => self.file(stat, at, last)?,
            FileType::Directory => self.attributes(at)?,
            FileType::Symlink => {
                let target = readlinkat(at, last, Vec::new())?;
                self.text(target.to_bytes());
            }
            FileType::CharacterDevice | FileType::BlockDevice => self.number(stat.st_rdev),
            FileType::Fifo | FileType::Socket | FileType::Unknown => {}
        }
        Ok(())
    }

    fn file(&mut self, stat: &Stat, at: BorrowedFd<'_>, name: &[u8]) -> io::Result<()> {
        // A pipe that took its place meanwhile would not be waited for.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = openat2(at, name, flags, Mode::empty(), RESOLVE)?;
        self.attributes(file.as_fd())?;
        let size = stat.st_size as u64;
        self.bytes += size;
        self.number(size);
        let known = match self.contents {
            Contents::Known(known) => known.get(&stat.st_ino).copied(),
            Contents::Read => None,
        };
        let digest = match known {
            Some(digest) => digest,
            None => self.content(File::from(file))?,
        };
        self.hash.update(digest);
        Ok(())
    }

    fn content(&mut self, mut file: File) -> io::Result<[u8; 32]> {
        let mut hash = Sha256::new();
        loop {
            match file.read(&mut self.buffer)? {
                0 => return Ok(hash.finalize().into()),
                count => hash.update(&self.buffer[..count]),
            }
        }
    }

    fn attributes(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        let attributes = attributes::read(file)?;
        self.number(attributes.len() as u64);
        for (name, value) in attributes {
            self.text(&name);
            self.text(&value);
        }
        Ok(())
    }

    fn number(&mut self, number: u64) {
        self.hash.update(number.to_le_bytes());
    }

    /// With its length, so that two texts can't be taken for two others.
    fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.hash.update(text);
    }
}
