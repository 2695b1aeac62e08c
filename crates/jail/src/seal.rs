//! The last steps before the agent: resource limits, and which descriptors stay open.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::plan::{Plan, Supplies};
use crate::rule::Rule;
use crate::sys::checked;

/// The agent's channel.
pub(crate) const CHANNEL: RawFd = 3;
/// The agent's image, until it is executed.
pub(crate) const IMAGE: RawFd = 4;
/// The socket for reporting failures, until the agent is executed.
pub(crate) const REPORT: RawFd = 5;

/// Lowers the limits that every process inside inherits.
pub(crate) fn limit(plan: &Plan) -> Result<(), Errno> {
    for (rule, resource, value) in [
        (Rule::CoreLimit, Resource::Core, CORE_BYTES),
        (Rule::Files, Resource::Nofile, plan.files.max(AGENT_FILES)),
        (Rule::LockedMemoryLimit, Resource::Memlock, MEMLOCK_BYTES),
        (Rule::MessageQueueLimit, Resource::Msgqueue, MSGQUEUE_BYTES),
        (Rule::PendingSignalsLimit, Resource::Sigpending, SIGNALS_PENDING),
        (Rule::PriorityLimit, Resource::Rtprio, 0),
        (Rule::PriorityLimit, Resource::Nice, 0),
    ] {
        if rule.is_on() {
            lower(resource, value)?;
        }
    }
    if let Some(processes) = plan.processes.filter(|_| Rule::Pids.is_on()) {
        lower(Resource::Nproc, processes)?;
    }
    Ok(())
}

/// Too small for a core, but not zero: if cores are piped to a program of the host, zero doesn't stop the kernel from
/// starting that program as the host's root, and one does. The filter keeps this value.
const CORE_BYTES: u64 = 1;
/// The agent needs a few descriptors for each of its up to 64 execs, and two for each of up to 192 process trees left
/// behind by one. Its programs get no more than requested.
const AGENT_FILES: u64 = 1024;
/// Enough locked memory for keys, but no way around a memory limit. Below the kernel's default, so that this limit
/// applies.
const MEMLOCK_BYTES: u64 = 1 << 20;
/// Queued signals are also counted for the user behind the namespace.
const SIGNALS_PENDING: u64 = 4096;
/// POSIX message queues take kernel memory: four of the usual size, half of the kernel's default.
const MSGQUEUE_BYTES: u64 = 409_600;

fn lower(resource: Resource, value: u64) -> Result<(), Errno> {
    let before = getrlimit(resource);
    let value = before.maximum.map_or(value, |maximum| maximum.min(value));
    setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })
}

/// Leaves the null device at 0, 1 and 2, the channel at 3, and above it only descriptors that close when the agent is
/// executed.
pub(crate) fn arrange_descriptors(channel: &OwnedFd, supplies: Supplies, report: &OwnedFd) -> Result<(), Errno> {
    // Give up ownership: the numbers below are closed all at once, and must not be closed a second time one by one.
    let Supplies { tasks, guest, views } = supplies;
    drop((tasks, views));
    let image = guest.into_fd().into_raw_fd();
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // Move all of them out of the way first: one may sit at the number another needs.
    let [null, channel, image, report] =
        [null.into_raw_fd(), channel.as_raw_fd(), image, report.as_raw_fd()].map(raised);
    let (null, channel, image, report) = (null?, channel?, image?, report?);
    for target in 0..=2 {
        place(null, target, 0)?;
    }
    place(channel, CHANNEL, 0)?;
    place(image, IMAGE, libc::O_CLOEXEC)?;
    place(report, REPORT, libc::O_CLOEXEC)?;
    if !Rule::Descriptors.is_on() {
        return Ok(());
    }
    // SAFETY: takes integers only; everything above REPORT is closed, and nothing here uses it afterwards.
    checked(unsafe { libc::syscall(libc::SYS_close_range, (REPORT + 1) as libc::c_uint, libc::c_uint::MAX, 0) })
        .map(|_| ())
}

fn raised(fd: RawFd) -> Result<RawFd, Errno> {
    // SAFETY: duplicates a descriptor number; fails with EBADF when it isn't open.
    checked(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 16) }.into()).map(|fd| fd as RawFd)
}

fn place(fd: RawFd, target: RawFd, flags: i32) -> Result<(), Errno> {
    // SAFETY: takes integers only; the source is at 16 or above and the target below it.
    checked(unsafe { libc::dup3(fd, target, flags) }.into()).map(|_| ())
}
