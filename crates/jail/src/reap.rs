//! Reaps PID 1, which is gone only when every process of its pid namespace is.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Pid;

/// Usage of a sandbox's whole tree, by the kernel's account of PID 1 and everything it reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reaped {
    /// CPU time, user and system.
    pub cpu: Duration,
}

/// Waits for PID 1 for at most `patience`. If the kernel can't kill a process, this is reported instead of waiting
/// forever.
pub fn reap(pidfd: &impl AsFd, pid: Pid, patience: Duration) -> io::Result<Option<Reaped>> {
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: i64::from(patience.subsec_nanos()) };
    let mut polls = [PollFd::new(pidfd, PollFlags::IN)];
    loop {
        match poll(&mut polls, Some(&timeout)) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let mut status = 0;
    // SAFETY: rusage is plain data for which zeroes are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live variables of the right type.
    let outcome = unsafe { libc::wait4(pid.as_raw_nonzero().get(), &raw mut status, 0, &raw mut usage) };
    if outcome < 0 {
        return Err(io::Error::last_os_error());
    }
    let time = |value: libc::timeval| Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1000);
    Ok(Some(Reaped { cpu: time(usage.ru_utime) + time(usage.ru_stime) }))
}
