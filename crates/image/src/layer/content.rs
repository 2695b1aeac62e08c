//! Copies the content of one file into a layer, with its holes: at once, or read now and written later.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::SeekFrom as Find;
use rustix::io::Errno;
use saggar_domain::Problem;
use sha2::{Digest, Sha256};

use super::unpack::hash_zeroes;
use crate::failure::{refused, storage};

/// Read and written at once.
const CHUNK: usize = 128 << 10;

/// Asked between two pieces of work; an error ends all of it.
pub type GoOn<'a> = &'a dyn Fn() -> Result<(), Problem>;

/// The digest of a file's content, which must have the size that it had before.
pub(super) fn digest(mut source: File, size: u64, go_on: GoOn<'_>) -> Result<[u8; 32], Problem> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut left = size;
    while left > 0 {
        go_on()?;
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = source.read(&mut buffer[..most]).map_err(|error| unreadable(&error))?;
        if count == 0 {
            return Err(changed());
        }
        hash.update(&buffer[..count]);
        left -= count as u64;
    }
    // Some filesystems say 0 for a file that has content. What was promised is counted, so the rest can't be taken.
    if source.read(&mut buffer[..1]).map_err(|error| unreadable(&error))? > 0 {
        return Err(refused(
            "it has more in it than its size says",
            "copy its content to an ordinary file, or build again when nothing changes it",
        ));
    }
    Ok(hash.finalize().into())
}

/// Copies `size` bytes, and leaves holes where the source has them. Returns what was written to and its digest.
pub(super) fn copy(source: &File, target: OwnedFd, size: u64, go_on: GoOn<'_>) -> Result<(OwnedFd, [u8; 32]), Problem> {
    let mut target = Target::new(target);
    pieces(source, size, go_on, |at, bytes| target.put(at, bytes, go_on))?;
    target.finish(size, go_on)
}

/// Reads `size` bytes, without holes: pieces with their places, none of them empty.
pub(super) fn pieces(
    mut source: &File,
    size: u64,
    go_on: GoOn<'_>,
    mut each: impl FnMut(u64, &[u8]) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let mut buffer = vec![0; CHUNK.min(usize::try_from(size).unwrap_or(CHUNK))];
    let mut at = 0;
    while at < size {
        at = match rustix::fs::seek(source, Find::Data(at)) {
            Ok(data) => data.min(size),
            // Nothing but a hole is left.
            Err(Errno::NXIO) => size,
            // A filesystem without holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(unreadable(&errno.into())),
        };
        let end = match rustix::fs::seek(source, Find::Hole(at)) {
            Ok(end) if end > at => end.min(size),
            _ => size,
        };
        if at == end {
            continue;
        }
        source.seek(SeekFrom::Start(at)).map_err(|error| unreadable(&error))?;
        while at < end {
            go_on()?;
            let most = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
            let count = source.read(&mut buffer[..most]).map_err(|error| unreadable(&error))?;
            if count == 0 {
                return Err(changed());
            }
            each(at, &buffer[..count])?;
            at += count as u64;
        }
    }
    Ok(())
}

/// A file that is written piece by piece, each behind the one before. What lies between them becomes a hole.
pub(super) struct Target {
    file: File,
    hash: Sha256,
    at: u64,
}

impl Target {
    pub(super) fn new(file: OwnedFd) -> Self {
        Self { file: file.into(), hash: Sha256::new(), at: 0 }
    }

    pub(super) fn put(&mut self, at: u64, bytes: &[u8], go_on: GoOn<'_>) -> Result<(), Problem> {
        self.skip_to(at, go_on)?;
        self.file.write_all_at(bytes, at).map_err(unwritable)?;
        self.hash.update(bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Returns the file and the digest of its content.
    pub(super) fn finish(mut self, size: u64, go_on: GoOn<'_>) -> Result<(OwnedFd, [u8; 32]), Problem> {
        self.skip_to(size, go_on)?;
        self.file.set_len(size).map_err(unwritable)?;
        Ok((self.file.into(), self.hash.finalize().into()))
    }

    fn skip_to(&mut self, at: u64, go_on: GoOn<'_>) -> Result<(), Problem> {
        let hole = at.checked_sub(self.at).ok_or_else(|| unwritable(std::io::ErrorKind::InvalidInput.into()))?;
        if hole > 0 {
            hash_zeroes(&mut self.hash, hole, &mut vec![0; CHUNK], go_on)?;
        }
        self.at = at;
        Ok(())
    }
}

fn unwritable(error: std::io::Error) -> Problem {
    storage("a layer can't be written", error)
}

fn unreadable(error: &std::io::Error) -> Problem {
    refused(format!("it can't be read: {}", error.kind()), "check its permissions and its disk, then build again")
}

fn changed() -> Problem {
    refused("it became shorter while it was read", "build again when nothing changes it")
}
