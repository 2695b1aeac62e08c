//! Writes a stored layer as an archive of an image: the other direction of [`super::unpack`].
//!
//! Directories are read in the order of names, so the same layer gives the same archive. What the form of images can't say is refused by name:
//! an archive without it would be another layer.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::SeekFrom as Find;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat2, readlinkat, seek, statat};
use rustix::io::Errno;
use saggar_domain::Problem;
use saggar_domain::template::Owners;
use saggar_sandbox::STORE_IDS;

use super::attributes;
use super::content::GoOn;
use super::whiteout::{Mark, OPAQUE_NAME, PREFIX, is_opaque, is_whiteout};
use crate::failure::{refused, shown};
use crate::tar::{ATTRIBUTES_MAX, Entry, Kind, Packer, SEGMENTS_MAX, Segment};

/// Read and written at once.
const CHUNK: usize = 128 << 10;
/// Deeper than any layer.
const DEPTH_MAX: usize = 256;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);
const RESOLVE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Writes the archive. A problem that was found travels inside of the error.
pub(crate) fn pack<W: Write>(tree: BorrowedFd<'_>, owners: Owners, out: W, go_on: GoOn<'_>) -> io::Result<W> {
    let mut packing =
        Packing { packer: Packer::new(out), owners, linked: HashMap::new(), buffer: vec![0; CHUNK], go_on };
    let top = openat2(tree, ".", DIRECTORY, Mode::empty(), RESOLVE)?;
    let mut open = vec![packing.directory(Vec::new(), top)?];
    while let Some(level) = open.last_mut() {
        let Some(name) = level.names.pop() else {
            open.pop();
            continue;
        };
        go_on().map_err(io::Error::other)?;
        if let Some(below) = packing.child(level, &name)? {
            if open.len() >= DEPTH_MAX {
                return Err(Errno::NAMETOOLONG.into());
            }
            open.push(below);
        }
    }
    packing.packer.finish()
}

/// An open directory, and what is left of it: the last name is next.
struct Level {
    path: Vec<u8>,
    directory: OwnedFd,
    names: Vec<Vec<u8>>,
}

struct Packing<'a, W> {
    packer: Packer<W>,
    owners: Owners,
    /// The first name of each file that has several, by inode.
    linked: HashMap<u64, Vec<u8>>,
    buffer: Vec<u8>,
    go_on: GoOn<'a>,
}

impl<W: Write> Packing<'_, W> {
    fn directory(&mut self, path: Vec<u8>, directory: OwnedFd) -> io::Result<Level> {
        let stat = fstat(&directory)?;
        let name = if path.is_empty() { b".".to_vec() } else { path.clone() };
        let kept = attributes::kept(&directory)?;
        let entry = self.entry(name, Kind::Directory, &stat, kept)?;
        self.packer.entry(&entry)?;
        if is_opaque(&directory)? {
            self.mark(&joined(&path, OPAQUE_NAME))?;
        }
        let mut names = Vec::new();
        for entry in Dir::read_from(&directory)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(name);
            }
        }
        names.sort_unstable_by(|a, b| b.cmp(a));
        Ok(Level { path, directory, names })
    }

    fn child(&mut self, level: &Level, name: &[u8]) -> io::Result<Option<Level>> {
        let path = joined(&level.path, name);
        let stat = statat(&level.directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if Mark::of(name) != Mark::None {
            return Err(io::Error::other(unwritable(
                &path,
                "its name begins with .wh., which means a removed file there",
            )));
        }
        if is_whiteout(&stat) {
            self.mark(&joined(&level.path, &[PREFIX, name].concat()))?;
            return Ok(None);
        }
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            let directory = openat2(&level.directory, name, DIRECTORY, Mode::empty(), RESOLVE)?;
            return self.directory(path, directory).map(Some);
        }
        if stat.st_nlink > 1 {
            if let Some(first) = self.linked.get(&stat.st_ino) {
                let kind = Kind::HardLink { target: first.clone() };
                let entry = self.entry(path, kind, &stat, Vec::new())?;
                self.packer.entry(&entry)?;
                return Ok(None);
            }
            self.linked.insert(stat.st_ino, path.clone());
        }
        match kind {
            FileType::RegularFile => self.file(path, level.directory.as_fd(), name, &stat)?,
            FileType::Symlink => {
                let target = readlinkat(&level.directory, name, Vec::new())?.into_bytes();
                let entry = self.entry(path, Kind::Link { target }, &stat, Vec::new())?;
                self.packer.entry(&entry)?;
            }
            FileType::Fifo => {
                let entry = self.entry(path, Kind::Fifo, &stat, Vec::new())?;
                self.packer.entry(&entry)?;
            }
            // No layer has one: they are left out when it is written.
            FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Socket
            | FileType::Unknown
            | FileType::Directory => {
                return Err(io::Error::other(unwritable(&path, "the stored layer is damaged")));
            }
        }
        Ok(None)
    }

    fn file(&mut self, path: Vec<u8>, at: BorrowedFd<'_>, name: &[u8], stat: &Stat) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut file = File::from(openat2(at, name, flags, Mode::empty(), RESOLVE)?);
        let size = stat.st_size as u64;
        let segments = segments(&file, size)?;
        let kept = attributes::kept(&file)?;
        let entry = self.entry(path, Kind::File { size, segments: segments.clone() }, stat, kept)?;
        self.packer.entry(&entry)?;
        for Segment { offset, length } in segments.unwrap_or_else(|| vec![Segment { offset: 0, length: size }]) {
            file.seek(SeekFrom::Start(offset))?;
            let mut left = length;
            while left > 0 {
                (self.go_on)().map_err(io::Error::other)?;
                let most = self.buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let count = file.read(&mut self.buffer[..most])?;
                if count == 0 {
                    return Err(io::Error::other(unwritable(&entry.path, "the stored layer is damaged")));
                }
                self.packer.data(&self.buffer[..count])?;
                left -= count as u64;
            }
        }
        Ok(())
    }

    /// An empty file whose name says something about the layers below.
    fn mark(&mut self, path: &[u8]) -> io::Result<()> {
        self.packer.entry(&Entry {
            path: path.to_vec(),
            kind: Kind::File { size: 0, segments: None },
            mode: 0o600,
            uid: 0,
            gid: 0,
            modified: (0, 0),
            attributes: Vec::new(),
            attributes_unread: 0,
        })
    }

    fn entry(
        &self,
        path: Vec<u8>,
        kind: Kind,
        stat: &Stat,
        attributes: Vec<attributes::Attribute>,
    ) -> io::Result<Entry> {
        if attributes.len() > ATTRIBUTES_MAX {
            return Err(io::Error::other(unwritable(&path, "it has more than 256 extended attributes")));
        }
        if let Some((name, _)) = attributes.iter().find(|(name, _)| name.contains(&b'=')) {
            return Err(io::Error::other(unwritable(
                &path,
                &format!("its attribute {} has a = in its name", shown(name)),
            )));
        }
        let id = |id: u32| match self.owners {
            Owners::Shifted => u64::from(id.wrapping_sub(STORE_IDS.start)),
            Owners::Dropped => 0,
        };
        Ok(Entry {
            path,
            kind,
            mode: stat.st_mode & 0o7777,
            uid: id(stat.st_uid),
            gid: id(stat.st_gid),
            modified: (stat.st_mtime, u32::try_from(stat.st_mtime_nsec).unwrap_or(0)),
            attributes,
            attributes_unread: 0,
        })
    }
}

/// Where a file has data; `None`: everywhere. Holes beyond the most that a reader takes are written as data.
fn segments(file: &File, size: u64) -> io::Result<Option<Vec<Segment>>> {
    let mut segments = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match seek(file, Find::Data(at)) {
            Ok(data) => data.min(size),
            Err(Errno::NXIO) => break,
            // A filesystem without holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let is_last = segments.len() + 1 == SEGMENTS_MAX;
        let end = match seek(file, Find::Hole(data)) {
            Ok(end) if end > data && !is_last => end.min(size),
            _ => size,
        };
        if data < end {
            segments.push(Segment { offset: data, length: end - data });
        }
        at = end;
    }
    let is_whole = segments.as_slice() == [Segment { offset: 0, length: size }] || size == 0;
    Ok((!is_whole).then_some(segments))
}

fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

fn unwritable(path: &[u8], why: &str) -> Problem {
    refused(
        format!("{} can't be in an archive of an image: {why}", shown(path)),
        "remove or rename it in a sandbox that is started from the snapshot, and export a snapshot of that one",
    )
}
