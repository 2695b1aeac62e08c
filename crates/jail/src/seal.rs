//! The last things before the agent: resource limits, and which descriptors survive.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::plan::{Plan, Supplies};
use crate::rule::Rule;
use crate::sys::checked;

/// Where the agent finds its channel.
pub(crate) const CHANNEL: RawFd = 3;
/// Where its own image is, until it is executed.
pub(crate) const IMAGE: RawFd = 4;
/// Where failures are reported, until it is executed.
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

/// Too little for a core, and not zero: where cores go to a program of the host's, zero does not keep the kernel from starting it, as
/// root of the host, and one does. The filter keeps it so.
const CORE_BYTES: u64 = 1;
/// The agent needs a few for each exec, of which it has 64, and two for each tree that is left of one, of which it has 192; it gives its
/// programs no more than asked.
const AGENT_FILES: u64 = 1024;
/// Locked memory is enough for keys, and no way round a memory limit. Less than kernels give by default, so that it is we who limit it.
const MEMLOCK_BYTES: u64 = 1 << 20;
/// Queued signals are counted for the user behind the namespace too.
const SIGNALS_PENDING: u64 = 4096;
/// POSIX message queues live in kernel memory: four of the usual size, half of what kernels give by default.
const MSGQUEUE_BYTES: u64 = 409_600;

fn lower(resource: Resource, value: u64) -> Result<(), Errno> {
    let before = getrlimit(resource);
    let value = before.maximum.map_or(value, |maximum| maximum.min(value));
    setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })
}

/// Leaves 0, 1 and 2 as the null device, the channel at 3, and above it only what closes when the agent is executed.
pub(crate) fn arrange_descriptors(channel: &OwnedFd, supplies: Supplies, report: &OwnedFd) -> Result<(), Errno> {
    // No longer owned by anyone but the numbers below: closing them all at once must not be followed by closing them one by one.
    let Supplies { tasks, guest, views } = supplies;
    drop((tasks, views));
    let image = guest.into_fd().into_raw_fd();
    let null = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // All moved out of the way first: a source may sit where another has to go.
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
