//! Ranges of host ids, one for each sandbox that root creates.
//!
//! A range is held by a lock on one byte of a file: the kernel releases it when its holder dies, so no clean-up is
//! needed. The file is host-wide, so that two data directories never share a range.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use saggar_jail::Identity;

/// Above everything that distributions, systemd and subuid files assign, and below the sign bit that some programs
/// misread.
const FIRST: u32 = 0x7000_0000;
/// Number of ranges.
const COUNT: u32 = 4094;
/// The ids that own the files of templates on disk: id N of an image is the first of these plus N. Neither the host nor any sandbox has
/// them, so a set-id bit on such a file gives nobody anything. A mount translates them into the range of the sandbox that uses it.
pub const STORE_IDS: std::ops::Range<u32> = FIRST + COUNT * Identity::RANGE..FIRST + (COUNT + 1) * Identity::RANGE;
/// No sandbox may access it.
pub(crate) const DIRECTORY: &str = "/run/saggar";
const FILE: &str = "/run/saggar/ranges";

pub(crate) fn all() -> std::ops::Range<u32> {
    FIRST..STORE_IDS.end
}

#[derive(Debug)]
pub(crate) struct Range {
    base: u32,
    _held: OwnedFd,
}

impl Range {
    /// Takes a free range. The search starts at a random place, so that ids are not soon reused.
    pub(crate) fn take(random: u32) -> io::Result<Self> {
        match std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(DIRECTORY) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let file =
            open(FILE, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::from_raw_mode(0o600))?;
        for step in 0..COUNT {
            let slot = (random % COUNT + step) % COUNT;
            if lock_byte(&file, slot)? {
                return Ok(Self { base: FIRST + slot * Identity::RANGE, _held: file });
            }
        }
        Err(io::Error::new(io::ErrorKind::QuotaExceeded, "every range of ids is in use"))
    }

    pub(crate) fn base(&self) -> u32 {
        self.base
    }
}

/// Locks one byte for this process; false if another has it. Unlike open file description locks, children don't inherit
/// it.
fn lock_byte(file: &OwnedFd, byte: u32) -> io::Result<bool> {
    // SAFETY: flock is plain data for which zeroes are valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = libc::off_t::from(byte);
    lock.l_len = 1;
    // SAFETY: F_SETLK reads one live flock.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ids_of_templates_are_no_sandboxs_and_not_negative() {
        let last = FIRST + (COUNT - 1) * Identity::RANGE + (Identity::RANGE - 1);
        assert_eq!(STORE_IDS.len(), Identity::RANGE as usize);
        assert!(last < STORE_IDS.start && i32::try_from(STORE_IDS.end).is_ok());
    }
}
