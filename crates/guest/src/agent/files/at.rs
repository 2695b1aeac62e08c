//! The system calls on names, as safe functions: one call each, relative to an open directory.

use alloc::vec::Vec;
use core::ffi::{CStr, c_int};
use core::mem::MaybeUninit;

use saggar_guest::LINK_MAX;

use crate::agent::sys::{self, Errno, Fd, check};

/// Absolute paths need no directory.
pub(super) const ROOT: c_int = libc::AT_FDCWD;

/// Flags of every open here: close-on-exec, non-blocking, and never a controlling terminal.
const ALWAYS: c_int = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;

pub(super) fn open(directory: c_int, name: &CStr, flags: c_int, mode: u32) -> Result<Fd, Errno> {
    // SAFETY: the name is a C string.
    Fd::returned(unsafe { libc::openat(directory, name.as_ptr(), flags | ALWAYS, mode) })
}

/// A directory to be in, not to be read: that takes only search permission.
pub(super) fn open_place(directory: c_int, name: &CStr) -> Result<Fd, Errno> {
    open(directory, name, libc::O_PATH | libc::O_DIRECTORY, 0)
}

/// Whether a link stands for itself or for its target.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Links {
    Stay,
    Follow,
}

pub(super) fn stat(directory: c_int, name: &CStr, links: Links) -> Result<libc::stat, Errno> {
    let flags = match links {
        Links::Stay => libc::AT_SYMLINK_NOFOLLOW,
        Links::Follow => 0,
    };
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the name is a C string; fstatat fills in the whole struct when it succeeds, and only then is it read.
    unsafe {
        check(libc::fstatat(directory, name.as_ptr(), status.as_mut_ptr(), flags))?;
        Ok(status.assume_init())
    }
}

pub(super) fn stat_open(file: &Fd) -> Result<libc::stat, Errno> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fstat fills in the whole struct when it succeeds, and only then is it read.
    unsafe {
        check(libc::fstat(file.raw(), status.as_mut_ptr()))?;
        Ok(status.assume_init())
    }
}

pub(super) fn read_link(directory: c_int, name: &CStr) -> Result<Vec<u8>, Errno> {
    let mut target = alloc::vec![0; LINK_MAX + 1];
    let length = sys::retry(|| {
        // SAFETY: the name is a C string; the pointer and the length are those of one writable slice.
        unsafe { libc::readlinkat(directory, name.as_ptr(), target.as_mut_ptr().cast(), target.len()) }
    })?;
    if length > LINK_MAX {
        return Err(Errno(libc::ENAMETOOLONG));
    }
    target.truncate(length);
    Ok(target)
}

pub(super) fn make_directory(directory: c_int, name: &CStr, mode: u32) -> Result<(), Errno> {
    // SAFETY: the name is a C string.
    check(unsafe { libc::mkdirat(directory, name.as_ptr(), mode) })
}

/// Removes a name that is not a directory's.
pub(super) fn unlink(directory: c_int, name: &CStr) -> Result<(), Errno> {
    // SAFETY: the name is a C string.
    check(unsafe { libc::unlinkat(directory, name.as_ptr(), 0) })
}

/// Removes an empty directory.
pub(super) fn remove_directory(directory: c_int, name: &CStr) -> Result<(), Errno> {
    // SAFETY: the name is a C string.
    check(unsafe { libc::unlinkat(directory, name.as_ptr(), libc::AT_REMOVEDIR) })
}

pub(super) fn rename(from: (c_int, &CStr), to: (c_int, &CStr)) -> Result<(), Errno> {
    // SAFETY: the names are C strings.
    check(unsafe { libc::renameat(from.0, from.1.as_ptr(), to.0, to.1.as_ptr()) })
}

pub(super) fn make_link(directory: c_int, name: &CStr, target: &CStr) -> Result<(), Errno> {
    // SAFETY: the names are C strings.
    check(unsafe { libc::symlinkat(target.as_ptr(), directory, name.as_ptr()) })
}

/// Gives an open file without a name a name that is not taken.
pub(super) fn name_open(file: &Fd, directory: c_int, name: &CStr) -> Result<(), Errno> {
    let path = open_path(file);
    let flags = libc::AT_SYMLINK_FOLLOW;
    // SAFETY: the names are C strings.
    check(unsafe { libc::linkat(ROOT, path.as_c_str().as_ptr(), directory, name.as_ptr(), flags) })
}

pub(super) fn set_mode(directory: c_int, name: &CStr, mode: u32) -> Result<(), Errno> {
    // SAFETY: the name is a C string.
    check(unsafe { libc::fchmodat(directory, name.as_ptr(), mode, 0) })
}

/// `None` leaves the owner or the group as it is.
pub(super) fn set_owner(directory: c_int, name: &CStr, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    let (uid, gid) = (uid.unwrap_or(libc::uid_t::MAX), gid.unwrap_or(libc::gid_t::MAX));
    // SAFETY: the name is a C string.
    check(unsafe { libc::fchownat(directory, name.as_ptr(), uid, gid, 0) })
}

pub(super) fn set_mode_open(file: &Fd, mode: u32) -> Result<(), Errno> {
    // SAFETY: takes numbers only.
    check(unsafe { libc::fchmod(file.raw(), mode) })
}

/// Which of a file's times are set to now, which decides the event that watchers get.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Touched {
    Attributes,
    Content,
}

pub(super) fn touch(file: &Fd, touched: Touched) -> Result<(), Errno> {
    let time = |nanoseconds| libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
    let accessed = match touched {
        Touched::Attributes => libc::UTIME_NOW,
        Touched::Content => libc::UTIME_OMIT,
    };
    let times = [time(accessed), time(libc::UTIME_NOW)];
    let path = open_path(file);
    // SAFETY: the name is a C string, and the call reads two times.
    check(unsafe { libc::utimensat(ROOT, path.as_c_str().as_ptr(), times.as_ptr(), 0) })
}

pub(super) fn is_writable(directory: c_int, name: &CStr) -> Result<(), Errno> {
    // SAFETY: the name is a C string. Real and effective user are the same here.
    check(unsafe { libc::faccessat(directory, name.as_ptr(), libc::W_OK, 0) })
}

/// The name under which the kernel shows an open file to its process.
pub(super) fn open_path(file: &Fd) -> OpenPath {
    let mut bytes = [0; OpenPath::LEN];
    bytes[..OpenPath::START.len()].copy_from_slice(OpenPath::START);
    let mut digits = [0; 10];
    let (mut count, mut rest) = (0, file.raw().unsigned_abs());
    loop {
        digits[count] = b'0' + (rest % 10) as u8;
        count += 1;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    for (place, digit) in bytes[OpenPath::START.len()..].iter_mut().zip(digits[..count].iter().rev()) {
        *place = *digit;
    }
    OpenPath(bytes)
}

/// `/proc/self/fd/` and a number.
pub(super) struct OpenPath([u8; Self::LEN]);

impl OpenPath {
    const START: &'static [u8] = b"/proc/self/fd/";
    const LEN: usize = 32;

    pub(super) fn as_c_str(&self) -> &CStr {
        // Longer than the longest number, so that it ends with zeroes.
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }
}
