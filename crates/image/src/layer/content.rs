//! Copies the content of one file into a layer, with its holes.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;

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
    Ok(hash.finalize().into())
}

/// Copies `size` bytes, and leaves holes where the source has them. Returns what was written to and its digest.
pub(super) fn copy(source: &File, target: OwnedFd, size: u64, go_on: GoOn<'_>) -> Result<(OwnedFd, [u8; 32]), Problem> {
    let fail = |error: std::io::Error| storage("a layer can't be written", error);
    let (mut source, mut target) = (source, File::from(target));
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(source, Find::Data(at)) {
            Ok(data) => data.min(size),
            // Nothing but a hole is left.
            Err(Errno::NXIO) => size,
            // A filesystem without holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(unreadable(&errno.into())),
        };
        hash_zeroes(&mut hash, data - at, &mut buffer, go_on)?;
        at = data;
        let end = match rustix::fs::seek(source, Find::Hole(at)) {
            Ok(end) if end > at => end.min(size),
            _ => size,
        };
        if at == end {
            continue;
        }
        source.seek(SeekFrom::Start(at)).map_err(|error| unreadable(&error))?;
        target.seek(SeekFrom::Start(at)).map_err(fail)?;
        while at < end {
            go_on()?;
            let most = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
            let count = source.read(&mut buffer[..most]).map_err(|error| unreadable(&error))?;
            if count == 0 {
                return Err(changed());
            }
            hash.update(&buffer[..count]);
            target.write_all(&buffer[..count]).map_err(fail)?;
            at += count as u64;
        }
    }
    target.set_len(size).map_err(fail)?;
    Ok((target.into(), hash.finalize().into()))
}

fn unreadable(error: &std::io::Error) -> Problem {
    refused(format!("it can't be read: {}", error.kind()), "check its permissions and its disk, then build again")
}

fn changed() -> Problem {
    refused("it became shorter while it was read", "build again when nothing changes it")
}
