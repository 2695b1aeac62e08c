//! Copies a file of a lower layer into this one, so that it can get another name here.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, XattrFlags, chmodat, chownat, fchmod, fchown, fsetxattr, fstat,
    futimens, mknodat, openat2, symlinkat, utimensat,
};
use saggar_domain::Problem;
use sha2::{Digest, Sha256};

use super::{HOSTILE, Parent, RESOLVE, Writer, io, times};
use crate::failure::{refused, shown, storage};
use crate::layer::below::Found;
use crate::layer::{Ownership, attributes};
use crate::limits::Budget;

/// Read and written at once. Where this many bytes are zero, a hole stays.
const CHUNK: usize = 64 << 10;

impl Writer {
    /// Copies what a lower layer has under a name, with everything that belongs to it; `false` if there is nothing.
    pub(super) fn copy_up(&mut self, parent: &Parent, name: &[u8], budget: &mut Budget) -> Result<bool, Problem> {
        match self.below_at(parent).and_then(|below| below.find(name)).map_err(io)? {
            Found::Nothing => return Ok(false),
            Found::Directory(_) => {
                return Err(refused(format!("a hard link to {} leads to a directory", shown(name)), HOSTILE));
            }
            Found::Link(target, stat) => {
                symlinkat(target.as_slice(), &parent.directory, name).map_err(io)?;
                self.finish_copy(parent, name, &stat)?;
            }
            Found::Other(from, stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => self.copy_file(&from, parent, name, budget)?,
                FileType::Fifo => {
                    mknodat(&parent.directory, name, FileType::Fifo, Mode::from_raw_mode(0o600), 0).map_err(io)?;
                    // Just made, so it is no link; this call would follow one.
                    let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
                    chmodat(&parent.directory, name, mode, AtFlags::empty()).map_err(io)?;
                    self.finish_copy(parent, name, &stat)?;
                }
                _ => return Ok(false),
            },
        }
        self.has_taken_entries = true;
        budget.entry(parent.path.as_bytes().len() + name.len())?;
        Ok(true)
    }

    fn copy_file(&mut self, from: &OwnedFd, to: &Parent, name: &[u8], budget: &mut Budget) -> Result<(), Problem> {
        let fail = |error: std::io::Error| storage("a layer can't be written", error);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let source = openat2(from, name, flags, Mode::empty(), RESOLVE).map_err(io)?;
        let stat = fstat(&source).map_err(io)?;
        budget.content(stat.st_size as u64)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let made = openat2(&to.directory, name, flags, Mode::from_raw_mode(0o600), RESOLVE).map_err(io)?;
        let attributes = attributes::kept(&source).map_err(io)?;
        let (mut source, mut file) = (File::from(source), File::from(made));
        let mut hash = Sha256::new();
        let mut buffer = vec![0; CHUNK];
        loop {
            let count = source.read(&mut buffer).map_err(fail)?;
            if count == 0 {
                break;
            }
            hash.update(&buffer[..count]);
            if buffer[..count].iter().all(|byte| *byte == 0) {
                file.seek(SeekFrom::Current(count as i64)).map_err(fail)?;
            } else {
                file.write_all(&buffer[..count]).map_err(fail)?;
            }
        }
        file.set_len(stat.st_size as u64).map_err(fail)?;
        let file = OwnedFd::from(file);
        if self.ownership == Ownership::Shifted {
            fchown(&file, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid))).map_err(io)?;
        }
        for (name, value) in attributes {
            fsetxattr(&file, name.as_slice(), &value, XattrFlags::empty()).map_err(io)?;
        }
        // After the owner: changing it would clear set-id bits.
        fchmod(&file, Mode::from_raw_mode(stat.st_mode & 0o7777)).map_err(io)?;
        futimens(&file, &times((stat.st_mtime, stat.st_mtime_nsec as u32))).map_err(io)?;
        self.contents.insert(fstat(&file).map_err(io)?.st_ino, hash.finalize().into());
        Ok(())
    }

    /// Owner and times of what can't be opened.
    fn finish_copy(&self, parent: &Parent, name: &[u8], stat: &Stat) -> Result<(), Problem> {
        let directory = parent.directory.as_fd();
        if self.ownership == Ownership::Shifted {
            let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
            chownat(directory, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(io)?;
        }
        let modified = times((stat.st_mtime, stat.st_mtime_nsec as u32));
        utimensat(directory, name, &modified, AtFlags::SYMLINK_NOFOLLOW).map_err(io)
    }
}
