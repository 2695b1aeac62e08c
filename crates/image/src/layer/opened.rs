//! Opens what a sandbox made, also if a program closed it to everybody: an ordinary user owns it, but may not read it. Root needs no permission.
//!
//! The program may be a live one. So permissions are never changed by name, which may lead elsewhere by then, and are given back afterwards.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, chmodat, fchmod, fstat, open, openat2};
use rustix::io::Errno;
use saggar_domain::Problem;

use super::changes::{PERMISSIONS, RESOLVE, unreadable};

/// A file or a directory. It has its own permissions again when this is dropped.
pub(super) struct Opened {
    pub(super) file: File,
    closed: Option<Mode>,
}

impl Opened {
    /// A file that the caller has looked at.
    pub(super) fn file(directory: impl AsFd, name: &[u8], stat: &Stat) -> Result<Self, Problem> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        match openat2(&directory, name, flags, Mode::empty(), RESOLVE) {
            Err(Errno::ACCESS) => Self::unlocked(directory, name, stat, 0o400, flags),
            opened => opened.map(Self::from).map_err(unreadable),
        }
    }

    /// The same with permissions that it doesn't have.
    pub(super) fn unlocked(
        directory: impl AsFd,
        name: &[u8],
        stat: &Stat,
        permissions: u32,
        flags: OFlags,
    ) -> Result<Self, Problem> {
        let path = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat2(directory, name, path, Mode::empty(), RESOLVE).map_err(unreadable)?;
        let now = fstat(&found).map_err(unreadable)?;
        let is_link = FileType::from_raw_mode(now.st_mode) == FileType::Symlink;
        if is_link || (now.st_dev, now.st_ino) != (stat.st_dev, stat.st_ino) {
            return Err(unreadable(Errno::STALE));
        }
        // It leads to what was found, and nowhere else. A descriptor of this kind can't be changed itself.
        let own = format!("/proc/self/fd/{}", found.as_raw_fd());
        let closed = Mode::from_raw_mode(now.st_mode & PERMISSIONS);
        let change = |mode| chmodat(CWD, own.as_str(), mode, AtFlags::empty());
        change(closed | Mode::from_raw_mode(permissions)).map_err(unreadable)?;
        match open(own.as_str(), flags.difference(OFlags::NOFOLLOW), Mode::empty()) {
            Ok(file) => Ok(Self { file: File::from(file), closed: Some(closed) }),
            Err(errno) => {
                // The first error is the one to report.
                let _ = change(closed);
                Err(unreadable(errno))
            }
        }
    }
}

impl From<OwnedFd> for Opened {
    fn from(opened: OwnedFd) -> Self {
        Self { file: File::from(opened), closed: None }
    }
}

impl AsFd for Opened {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(mode) = self.closed {
            // What can't be closed again stays its owner's alone.
            let _ = fchmod(&self.file, mode);
        }
    }
}
