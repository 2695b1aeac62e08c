//! Compares and copies files by descriptor, keeping holes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags, SeekFrom, fstat, ftruncate, openat2, seek};
use rustix::io::{Errno, pread, pwrite};

/// Never leaves the tree, never follows a link.
pub(crate) const WITHIN: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);
/// Called regularly during long work; an error ends the work.
pub(crate) type GoOn<'a> = &'a dyn Fn() -> Result<(), Errno>;
/// Bytes read at once.
const PIECE: usize = 64 * 1024;

/// Opens a regular file below a directory for reading, without blocking on special files.
pub(crate) fn open_file(top: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    openat2(top, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty(), WITHIN)
}

/// Opens a directory below another, for listing and as a base for further opens.
pub(crate) fn open_directory(top: BorrowedFd<'_>, path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { &b"."[..] } else { path };
    openat2(top, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty(), WITHIN)
}

/// Whether two files have the same contents. If both have a hole nothing is read, because a sparse file may be too long
/// to read.
pub(crate) fn is_same(a: &OwnedFd, b: &OwnedFd, go_on: GoOn<'_>) -> Result<bool, Errno> {
    let (mut left, mut right) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    loop {
        go_on()?;
        let next = match (next_data(a, at)?, next_data(b, at)?) {
            (Some(one), Some(other)) => one.min(other),
            (Some(only), None) | (None, Some(only)) => only,
            (None, None) => return Ok(fstat(a)?.st_size == fstat(b)?.st_size),
        };
        let (length, other) = (fill(a, &mut left, next)?, fill(b, &mut right, next)?);
        if left[..length] != right[..other] {
            return Ok(false);
        }
        if length == 0 {
            return Ok(fstat(a)?.st_size == fstat(b)?.st_size);
        }
        at = next + length as u64;
    }
}

/// The position of the next data; `None` if only a hole follows.
fn next_data(file: &OwnedFd, at: u64) -> Result<Option<u64>, Errno> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some(start)),
        Err(Errno::NXIO) => Ok(None),
        // The filesystem doesn't support holes.
        Err(Errno::INVAL) => Ok(Some(at)),
        Err(errno) => Err(errno),
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &OwnedFd, space: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut have = 0;
    while have < space.len() {
        match pread(file, &mut space[have..], at + have as u64)? {
            0 => break,
            more => have += more,
        }
    }
    Ok(have)
}

/// Copies a file's data and skips its holes.
pub(crate) fn copy(from: &OwnedFd, to: &impl AsFd, size: u64, go_on: GoOn<'_>) -> Result<(), Errno> {
    ftruncate(to, size)?;
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < size {
        let Some(start) = next_data(from, at)? else { break };
        let end = seek(from, SeekFrom::Hole(start)).unwrap_or(size).min(size);
        at = start;
        while at < end {
            go_on()?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn long_holes_are_compared_without_reading_them() {
        let file = |data: &[(&str, u64)], size: u64| {
            let file = std::fs::File::from(
                rustix::fs::memfd_create("file", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd"),
            );
            file.set_len(size).unwrap();
            data.iter().for_each(|(text, at)| file.write_all_at(text.as_bytes(), *at).unwrap());
            OwnedFd::from(file)
        };
        let size = 1 << 50;
        let one = || file(&[("x", 0), ("y", 1 << 49)], size);
        for (other, expected) in [
            (one(), true),
            (file(&[("x", 0), ("z", 1 << 49)], size), false),
            (file(&[("x", 0)], size), false),
            (file(&[("x", 0), ("y", 1 << 49), ("\0", 1 << 40)], size), true),
            (file(&[("x", 0), ("y", 1 << 49)], size + 1), false),
            (file(&[], 0), false),
        ] {
            assert_eq!(is_same(&one(), &other, &|| Ok(())), Ok(expected));
            assert_eq!(is_same(&other, &one(), &|| Ok(())), Ok(expected));
        }
        assert_eq!(is_same(&one(), &one(), &|| Err(Errno::CANCELED)), Err(Errno::CANCELED));
    }
}
