//! Comparing and copying files by descriptor, holes kept as holes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, SeekFrom, ftruncate, openat2, seek};
use rustix::io::{Errno, pread, pwrite};

/// Never out of the tree, never through a link.
pub(crate) const WITHIN: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Read at once.
const PIECE: usize = 64 * 1024;

/// Opens a regular file below a directory for reading, without blocking on what isn't one.
pub(crate) fn open_file(top: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    openat2(top, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty(), WITHIN)
}

/// Opens a directory below another for listing and as a base.
pub(crate) fn open_directory(top: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { &b"."[..] } else { path };
    openat2(top, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), WITHIN)
}

/// Whether two files hold the same bytes.
pub(crate) fn is_same(a: &OwnedFd, b: &OwnedFd) -> Result<bool, Errno> {
    let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
    let mut offset = 0;
    loop {
        let length = pread(a, &mut left[..], offset)?;
        let mut have = 0;
        while have < length {
            match pread(b, &mut right[have..length], offset + have as u64)? {
                0 => return Ok(false),
                more => have += more,
            }
        }
        if length == 0 {
            return Ok(pread(b, &mut right[..1], offset)? == 0);
        }
        if left[..length] != right[..length] {
            return Ok(false);
        }
        offset += length as u64;
    }
}

/// Copies a file's data, not its holes.
pub(crate) fn copy(from: &OwnedFd, to: &impl AsFd, size: u64) -> Result<(), Errno> {
    ftruncate(to, size)?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < size {
        let start = match seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => break,
            // A filesystem that doesn't know of holes has none.
            Err(Errno::INVAL) => at,
            Err(errno) => return Err(errno),
        };
        let end = seek(from, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        at = start;
        while at < end {
            let want = PIECE.min((end - at) as usize);
            let length = pread(from, &mut piece[..want], at)?;
            if length == 0 {
                return Ok(());
            }
            let mut done = 0;
            while done < length {
                done += pwrite(to, &piece[done..length], at + done as u64)?;
            }
            at += length as u64;
        }
    }
    Ok(())
}
