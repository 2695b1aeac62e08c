//! Creates a network namespace in parallel: this takes the kernel as long as all mounts together.
//!
//! A helper process that shares our memory and descriptors enters a new network namespace, brings its loopback up,
//! opens it and exits. Once the root is ready, we join it. This costs a little on one CPU and saves a lot on two.

use std::ffi::{CStr, c_void};
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::rule::Rule;
use crate::sys::{checked, join_network, loopback_up, unshare_network};

/// Enough for a few system calls.
const STACK_LEN: usize = 16 * 1024;

/// Settings of the new network namespace, as files of `/proc/sys/net`. Each bounds kernel memory that is charged to no
/// cgroup. All traffic in there goes over the loopback, where small buffers cost nothing. If the kernel doesn't have a
/// setting per namespace, the file doesn't exist there.
const BOUNDS: &[(&CStr, &[u8])] = &[
    // What a connection can receive, even before it is accepted: `Waiting::connections_for` relies on it.
    (c"sys/net/ipv4/tcp_rmem", b"4096 131072 262144"),
    // Closed connections, which are remembered for a minute each.
    (c"sys/net/ipv4/tcp_max_tw_buckets", b"4096"),
    // A timestamp requested with a message is queued in the socket, with a copy of the message unless this is off.
    (c"sys/net/core/tstamp_allow_data", b"0"),
];

/// A network namespace being created.
pub(crate) struct Network {
    helper: Pid,
    done: OwnedFd,
    _work: Box<Work>,
    /// The helper's stack, while it lives.
    _stack: Vec<u128>,
}

/// The helper's input.
struct Work {
    /// The host's /proc, which is about to be covered.
    proc: OwnedFd,
    tell: OwnedFd,
    /// Looked up beforehand: the helper must not allocate.
    is_bounded: bool,
}

impl Network {
    pub(crate) fn start() -> Result<Self, Errno> {
        let (done, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        let proc = open("/proc", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let work = Box::new(Work { proc, tell, is_bounded: Rule::NetworkBounds.is_on() });
        let mut stack = vec![0u128; STACK_LEN / size_of::<u128>()];
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::SIGCHLD;
        // SAFETY: the stack is aligned, writable, and outlives the helper, as does its work: dropping this ends the helper first. The helper
        // makes raw system calls only: it allocates nothing, can't panic, and touches no variable of ours, errno included.
        let pid = unsafe {
            libc::clone(
                helper,
                stack.as_mut_ptr_range().end.cast::<c_void>(),
                flags,
                (&raw const *work).cast_mut().cast::<c_void>(),
            )
        };
        let helper = Pid::from_raw(checked(pid.into())? as i32).ok_or(Errno::SRCH)?;
        Ok(Self { helper, done, _work: work, _stack: stack })
    }

    /// Waits until it is ready and moves the caller there.
    pub(crate) fn join(self) -> Result<(), Errno> {
        let mut answer = [0u8; 4];
        if rustix::io::read(&self.done, &mut answer)? != answer.len() {
            return Err(Errno::PIPE);
        }
        match i32::from_ne_bytes(answer) {
            negative if negative < 0 => Err(Errno::from_raw_os_error(-negative)),
            // SAFETY: the helper shares our descriptors, opened this one for us and has ended or is about to.
            number => join_network(&unsafe { OwnedFd::from_raw_fd(number) }),
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Our own child, which is done or no longer needed: neither call can fail usefully.
        let _ = kill_process(self.helper, Signal::KILL);
        let _ = waitpid(Some(self.helper), WaitOptions::empty()); // As above.
    }
}

extern "C" fn helper(work: *mut c_void) -> libc::c_int {
    // SAFETY: `start` passed a live Work, which outlives us.
    let Work { proc, tell, is_bounded } = unsafe { &*work.cast::<Work>() };
    let made = unshare_network()
        .and_then(|()| loopback_up())
        .and_then(|()| if *is_bounded { set_bounds(proc) } else { Ok(()) })
        .and_then(|()| openat(proc, "self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()));
    let answer = match made {
        Ok(namespace) => std::os::fd::IntoRawFd::into_raw_fd(namespace),
        Err(errno) => -errno.raw_os_error(),
    };
    // If this fails, the other side isn't waiting: dropping its end kills us.
    let _ = rustix::io::write(tell, &answer.to_ne_bytes());
    0
}

/// Writes the settings of the caller's namespace.
fn set_bounds(proc: &OwnedFd) -> Result<(), Errno> {
    for (name, value) in BOUNDS {
        match openat(proc, *name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => rustix::io::write(&file, value).map(|_| ())?,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
