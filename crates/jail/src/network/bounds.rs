//! Settings of a new network namespace, as files of `/proc/sys/net`.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;

/// A file below `/proc`, and what to write to it.
type Setting = (&'static CStr, &'static [u8]);

/// Each bounds kernel memory that is charged to no cgroup. All traffic in there goes over the loopback, where small
/// buffers cost nothing.
pub(super) const BOUNDS: &[Setting] = &[
    // What a connection can receive, even before it is accepted: `Waiting::connections_for` relies on it.
    (c"sys/net/ipv4/tcp_rmem", b"4096 131072 262144"),
    // Closed connections, which are remembered for a minute each.
    (c"sys/net/ipv4/tcp_max_tw_buckets", b"4096"),
    // A timestamp requested with a message is queued in the socket, with a copy of the message unless this is off.
    (c"sys/net/core/tstamp_allow_data", b"0"),
];

pub(super) const PROXIED: &[Setting] = &[
    // A port that was used for a connection can be used again at once, and not after a minute only: a program may
    // connect to one address very often.
    (c"sys/net/ipv4/tcp_tw_reuse", b"1"),
    // What the egress process sends to a program that doesn't read waits in the egress process's own memory, and a
    // program can open many connections. The kernel's default is 4 MiB for each.
    (c"sys/net/ipv4/tcp_wmem", b"4096 65536 262144"),
];

/// Writes settings of the caller's namespace. If the kernel doesn't have one per namespace, its file doesn't exist
/// there. Allocates nothing.
pub(super) fn set(proc: &OwnedFd, settings: &[Setting]) -> Result<(), Errno> {
    for (name, value) in settings {
        match openat(proc, *name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(file) => rustix::io::write(&file, value).map(|_| ())?,
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
