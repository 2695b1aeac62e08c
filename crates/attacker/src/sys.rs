//! The few system calls that this program makes without the standard library.

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Any system call. Addresses among the arguments are null, or of buffers that the caller keeps alive and large enough.
pub fn call(number: libc::c_long, arguments: &[usize]) -> io::Result<usize> {
    let mut all = [0usize; 6];
    all[..arguments.len()].copy_from_slice(arguments);
    let [a, b, c, d, e, f] = all;
    // SAFETY: the kernel checks every argument; the callers, all in this program, pass no address but null and those of
    // buffers that outlive the call.
    let answer = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as usize) }
}

pub fn path(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

pub fn at(text: &CString) -> usize {
    text.as_ptr() as usize
}

pub const CWD: usize = libc::AT_FDCWD as usize;

/// The plain system call, with any flags and mode.
pub fn open(name: &str, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    let name = path(name);
    call(libc::SYS_openat, &[CWD, at(&name), flags as usize, mode as usize]).map(own)
}

/// Takes ownership of a descriptor that a call has just returned.
pub fn own(fd: usize) -> OwnedFd {
    // SAFETY: a successful system call has just created this descriptor, and nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd as RawFd) }
}

/// Ends this process by a signal after this many seconds.
pub fn set_alarm(seconds: u32) {
    // SAFETY: takes an integer and sets a timer.
    unsafe { libc::alarm(seconds) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildEnd {
    Code(i32),
    Signal { number: i32, has_core: bool },
    Unborn(i32),
}

/// Starts a child that runs `work` and exits with its result. It dies with its parent, and has its own alarm.
pub fn start(work: impl FnOnce() -> i32) -> io::Result<libc::pid_t> {
    // SAFETY: this program has one thread whenever it comes here, so the child may do anything.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            set_alarm(20);
            // It can't fail with a valid signal, and an alarm ends the child anyway.
            unheeded(call(libc::SYS_prctl, &[libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize]));
            let code = work();
            // SAFETY: ends the process without running the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        pid => Ok(pid),
    }
}

pub fn wait(pid: libc::pid_t) -> ChildEnd {
    let mut status = 0;
    // SAFETY: the pointer is to a live integer.
    let waited = unsafe { libc::waitpid(pid, &mut status, 0) };
    if waited < 0 {
        ChildEnd::Unborn(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    } else if libc::WIFEXITED(status) {
        ChildEnd::Code(libc::WEXITSTATUS(status))
    } else {
        ChildEnd::Signal { number: libc::WTERMSIG(status), has_core: libc::WCOREDUMP(status) }
    }
}

/// Runs `work` in a child and returns how that ended.
pub fn in_child(work: impl FnOnce() -> i32) -> ChildEnd {
    match start(work) {
        Ok(pid) => wait(pid),
        Err(error) => ChildEnd::Unborn(error.raw_os_error().unwrap_or(0)),
    }
}

/// Sends a signal to a child of this program, or signal 0 to any process.
pub fn kill(pid: libc::pid_t, signal: i32) -> io::Result<usize> {
    call(libc::SYS_kill, &[pid as usize, signal as usize])
}

/// For results that show in what follows, or don't matter.
pub fn unheeded<T>(_: io::Result<T>) {}

/// Waits briefly. Used only between polls of another process's progress.
pub fn pause_ms(milliseconds: u64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: (milliseconds * 1_000_000) as _ };
    // Waking early only means polling sooner.
    unheeded(call(libc::SYS_nanosleep, &[&raw const time as usize, 0]));
}

pub fn errno_name(number: i32) -> &'static str {
    const NAMES: &[(i32, &str)] = &[
        (libc::EPERM, "EPERM"),
        (libc::ENOENT, "ENOENT"),
        (libc::ESRCH, "ESRCH"),
        (libc::EIO, "EIO"),
        (libc::ENXIO, "ENXIO"),
        (libc::E2BIG, "E2BIG"),
        (libc::EBADF, "EBADF"),
        (libc::ECHILD, "ECHILD"),
        (libc::EAGAIN, "EAGAIN"),
        (libc::ENOMEM, "ENOMEM"),
        (libc::EACCES, "EACCES"),
        (libc::EFAULT, "EFAULT"),
        (libc::EBUSY, "EBUSY"),
        (libc::EEXIST, "EEXIST"),
        (libc::EXDEV, "EXDEV"),
        (libc::ENODEV, "ENODEV"),
        (libc::ENOTDIR, "ENOTDIR"),
        (libc::EISDIR, "EISDIR"),
        (libc::EINVAL, "EINVAL"),
        (libc::ENFILE, "ENFILE"),
        (libc::EMFILE, "EMFILE"),
        (libc::ENOTTY, "ENOTTY"),
        (libc::ETXTBSY, "ETXTBSY"),
        (libc::EFBIG, "EFBIG"),
        (libc::ENOSPC, "ENOSPC"),
        (libc::ESPIPE, "ESPIPE"),
        (libc::EROFS, "EROFS"),
        (libc::EMLINK, "EMLINK"),
        (libc::EPIPE, "EPIPE"),
        (libc::ERANGE, "ERANGE"),
        (libc::ENAMETOOLONG, "ENAMETOOLONG"),
        (libc::ENOSYS, "ENOSYS"),
        (libc::ENOTEMPTY, "ENOTEMPTY"),
        (libc::ELOOP, "ELOOP"),
        (libc::ENODATA, "ENODATA"),
        (libc::EOVERFLOW, "EOVERFLOW"),
        (libc::ENOTSOCK, "ENOTSOCK"),
        (libc::EPROTOTYPE, "EPROTOTYPE"),
        (libc::EPROTONOSUPPORT, "EPROTONOSUPPORT"),
        (libc::ESOCKTNOSUPPORT, "ESOCKTNOSUPPORT"),
        (libc::ENOPROTOOPT, "ENOPROTOOPT"),
        (libc::EOPNOTSUPP, "EOPNOTSUPP"),
        (libc::EAFNOSUPPORT, "EAFNOSUPPORT"),
        (libc::EADDRNOTAVAIL, "EADDRNOTAVAIL"),
        (libc::ENETDOWN, "ENETDOWN"),
        (libc::ENETUNREACH, "ENETUNREACH"),
        (libc::EHOSTUNREACH, "EHOSTUNREACH"),
        (libc::ECONNREFUSED, "ECONNREFUSED"),
        (libc::ENOBUFS, "ENOBUFS"),
        (libc::ETIMEDOUT, "ETIMEDOUT"),
        (libc::EINPROGRESS, "EINPROGRESS"),
        (libc::EDQUOT, "EDQUOT"),
    ];
    NAMES.iter().find(|(known, _)| *known == number).map_or("another error", |(_, name)| name)
}
