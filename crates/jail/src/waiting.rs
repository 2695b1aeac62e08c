//! A bound, for the whole sandbox, on connections that wait to be accepted.
//!
//! What arrives on a TCP connection before `accept` is charged to no cgroup, and neither is the connection itself. The
//! kernel bounds the queue of each listener, but not the number of listeners. So every `listen` goes to the host, which
//! makes the call itself, on a copy of the descriptor, with a backlog from what is left for the sandbox. It records
//! each listener's backlog by inode, and checks in the sandbox's list of sockets which listeners still exist.
//!
//! A helper process makes the call. Whatever kind of descriptor a program passes, nothing the helper does with it can
//! block the supervisor. For example, closing a socket that lingers takes as long as the program likes, unless the
//! process that closes it exits.
//!
//! Sockets of other kinds get the backlog they ask for: data queued at a unix socket is charged to its sender. A unix
//! socket remembers the ids of the process that called `listen`, and reports them to its clients, so the helper uses
//! the caller's ids then. (Its process id is not the caller's: clients inside see 0.)

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};

use crate::seccomp::{Listener, Notification};
use crate::sys::{Cloned, checked, clone3, exit_now};

/// How long the helper may take. It makes a few calls, none of which should block.
const PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// Maximum length of the list of sockets that is read; more than the possible number of listeners needs.
const LIST_BYTES_MAX: u64 = 1 << 20;
/// The kernel's notation for the state of a listening socket.
const LISTENING: &str = "0A";
/// One listener gets this fraction of what is left, so that the first doesn't take everything.
const SHARE: u32 = 16;
const PIDFD_THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;

/// The number of connections that may wait in one sandbox, and how they are distributed.
#[derive(Debug)]
pub struct Waiting {
    connections_max: u32,
    /// Connections that may wait at each listener, by the inode of its socket.
    granted: BTreeMap<u64, u32>,
    /// Set if a helper did not finish: the state of that listener is unknown, so no more are allowed.
    is_closed: bool,
}

impl Waiting {
    pub fn new(connections_max: u32) -> Self {
        Self { connections_max, granted: BTreeMap::new(), is_closed: false }
    }

    /// Connections that may wait in a sandbox with this much memory. With the receive buffers of a private network they
    /// hold at most an eighth of it, if that is more than 8 MiB.
    pub fn connections_for(memory_bytes: u64) -> u32 {
        const BYTES_EACH: u64 = 256 << 10;
        u32::try_from(memory_bytes / 8 / BYTES_EACH).unwrap_or(u32::MAX).clamp(32, 1024)
    }

    /// Makes a `listen` call on behalf of the waiting caller. ENOBUFS if no more connections may wait.
    pub fn listen(&mut self, listener: &Listener, notification: &Notification) -> Result<(), Errno> {
        if self.is_closed {
            return Err(Errno::NOBUFS);
        }
        let thread = i32::try_from(notification.pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
        let owner = open_owner(thread)?;
        let lists = ["tcp", "tcp6"].map(|name| listening(thread, name));
        let ids = ids_of(thread)?;
        if !listener.is_waiting(notification) {
            return Err(Errno::SRCH);
        }
        let [four, six] = lists;
        let (four, six) = (four?, six?);
        self.granted.retain(|inode, _| four.contains(inode) || six.contains(inode));
        let (descriptor, asked) = (notification.args[0] as RawFd, notification.args[1] as i32);
        let made = Helper::start(&owner, ids, descriptor, asked, self).and_then(Helper::finish);
        let made = made.inspect_err(|errno| self.is_closed = *errno == Errno::TIMEDOUT)?;
        if let Some((inode, backlog)) = made {
            self.granted.insert(inode, backlog + 1);
        }
        Ok(())
    }

    /// The largest backlog for this socket. The kernel lets one connection more wait than the backlog says. A second `listen` on a
    /// socket never lowers its backlog.
    fn share(&self, inode: u64) -> Option<u32> {
        let own = self.granted.get(&inode).copied().unwrap_or(0);
        let granted: u32 = self.granted.values().sum();
        let left = self.connections_max.saturating_sub(granted - own);
        let share = (left >= 2).then(|| (left / SHARE).max(1));
        share.max(own.checked_sub(1).filter(|own| *own > 0))
    }
}

/// A process that has the caller's descriptors. Kernels before 6.9 have pidfds only of whole processes; a thread has
/// other descriptors than its process only if the program arranged that.
fn open_owner(thread: Pid) -> Result<OwnedFd, Errno> {
    open_process(thread.as_raw_nonzero().get(), PIDFD_THREAD).or_else(|errno| {
        if errno != Errno::INVAL {
            return Err(errno);
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", thread.as_raw_nonzero()))
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::SRCH))?;
        let leader = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        open_process(leader.ok_or(Errno::SRCH)?, 0)
    })
}

fn open_process(pid: i32, flags: libc::c_uint) -> Result<OwnedFd, Errno> {
    // SAFETY: takes integers only.
    let fd = checked(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, flags) })?;
    // SAFETY: the kernel has just created this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// The effective user and group of a thread, as seen outside its sandbox.
fn ids_of(thread: Pid) -> Result<[u32; 2], Errno> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", thread.as_raw_nonzero()))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::SRCH))?;
    let effective = |name: &str| {
        let ids = status.lines().find_map(|line| line.strip_prefix(name))?;
        ids.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    Ok([effective("Uid:").ok_or(Errno::SRCH)?, effective("Gid:").ok_or(Errno::SRCH)?])
}

/// Switches to these ids permanently. Runs in the helper, and skips ids that are already set: an ordinary user's
/// sandboxes have that user's ids.
fn become_user([user, group]: [u32; 2]) -> Result<(), Errno> {
    if rustix::process::getegid().as_raw() != group {
        // SAFETY: takes integers only.
        checked(unsafe { libc::syscall(libc::SYS_setresgid, group, group, group) })?;
    }
    if rustix::process::geteuid().as_raw() != user {
        // SAFETY: takes integers only.
        checked(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) })?;
    }
    Ok(())
}

/// Inodes of the listening sockets in the network namespace of a process. They come first in the list.
fn listening(thread: Pid, list: &str) -> Result<Vec<u64>, Errno> {
    let file = match std::fs::File::open(format!("/proc/{}/net/{list}", thread.as_raw_nonzero())) {
        Ok(file) => file,
        // A kernel without IPv6.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    };
    let mut found = Vec::new();
    for line in BufReader::new(file.take(LIST_BYTES_MAX)).lines().skip(1) {
        let line = line.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let mut words = line.split_ascii_whitespace().skip(3);
        if words.next() != Some(LISTENING) {
            break;
        }
        found.extend(words.nth(5).and_then(|inode| inode.parse::<u64>().ok()));
    }
    Ok(found)
}

/// A process that makes one call, reports the result, and exits.
struct Helper {
    pid: Pid,
    answer: OwnedFd,
}

impl Helper {
    /// If no share is left, it makes the call only for sockets that need none.
    fn start(owner: &OwnedFd, ids: [u32; 2], descriptor: RawFd, asked: i32, waiting: &Waiting) -> Result<Self, Errno> {
        let (answer, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        match clone3(0, None)? {
            Cloned::Child => {
                let said = match listen_at(owner, ids, descriptor, asked, waiting) {
                    Ok((inode, backlog)) => [0, inode, u64::from(backlog)],
                    Err(errno) => [errno.raw_os_error() as u64, 0, 0],
                };
                let mut bytes = [0u8; ANSWER_LEN];
                bytes.as_chunks_mut::<8>().0.iter_mut().zip(said).for_each(|(place, word)| *place = word.to_ne_bytes());
                // If the supervisor doesn't read this, it has abandoned us.
                let _ = rustix::io::write(&tell, &bytes);
                // No descriptor is closed before this: see above.
                exit_now(0)
            }
            Cloned::Parent { pid, .. } => Ok(Self { pid: Pid::from_raw(pid).ok_or(Errno::SRCH)?, answer }),
        }
    }

    /// The result: the socket's inode and its backlog, if the socket counts.
    fn finish(self) -> Result<Option<(u64, u32)>, Errno> {
        let mut waiting = [PollFd::new(&self.answer, PollFlags::IN)];
        let is_ready = poll(&mut waiting, Some(&PATIENCE)).is_ok_and(|count| count > 0);
        // Our own child. If it has answered it has nothing left to do; otherwise it is abandoned.
        let _ = kill_process(self.pid, Signal::KILL);
        if !is_ready {
            return Err(Errno::TIMEDOUT);
        }
        let mut bytes = [0u8; ANSWER_LEN];
        let count = rustix::io::read(&self.answer, &mut bytes)?;
        self.bury()?;
        if count != ANSWER_LEN {
            return Err(Errno::TIMEDOUT);
        }
        let mut words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word));
        match (words.next(), words.next(), words.next()) {
            (Some(0), Some(0), _) => Ok(None),
            (Some(0), Some(inode), Some(backlog)) => Ok(Some((inode, backlog as u32))),
            (Some(errno), ..) => Err(Errno::from_raw_os_error(errno as i32)),
            _ => Err(Errno::TIMEDOUT),
        }
    }

    /// Reaps a killed helper. That should take no time; the wait is bounded all the same.
    fn bury(&self) -> Result<(), Errno> {
        let handle = pidfd_open(self.pid, PidfdFlags::empty())?;
        let mut ended = [PollFd::new(&handle, PollFlags::IN)];
        match poll(&mut ended, Some(&PATIENCE)) {
            Ok(1..) => waitpid(Some(self.pid), WaitOptions::NOHANG).map(|_| ()),
            Ok(0) | Err(_) => Err(Errno::TIMEDOUT),
        }
    }
}

/// An error or 0, an inode or 0, and a backlog.
const ANSWER_LEN: usize = 24;

/// Runs in the helper. Allocates nothing.
fn listen_at(
    owner: &OwnedFd,
    ids: [u32; 2],
    descriptor: RawFd,
    asked: i32,
    waiting: &Waiting,
) -> Result<(u64, u32), Errno> {
    // SAFETY: takes integers only.
    let socket = checked(unsafe { libc::syscall(libc::SYS_pidfd_getfd, owner.as_raw_fd(), descriptor, 0) })? as RawFd;
    // SAFETY: the kernel has just created this descriptor. Only the end of this process closes it.
    let socket = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(socket) });
    let domain = rustix::net::sockopt::socket_domain(&*socket)?;
    if domain != rustix::net::AddressFamily::INET && domain != rustix::net::AddressFamily::INET6 {
        become_user(ids)?;
        return rustix::net::listen(&*socket, asked).map(|()| (0, 0));
    }
    let inode = rustix::fs::fstat(&*socket)?.st_ino;
    let share = waiting.share(inode).ok_or(Errno::NOBUFS)?;
    // The kernel treats a negative number as a very large one.
    let backlog = u32::try_from(asked).unwrap_or(share).min(share);
    rustix::net::listen(&*socket, backlog as i32).map(|()| (inode, backlog))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_follows_the_memory_between_two_ends() {
        let bounds = [1u64 << 20, 64 << 20, 512 << 20, 2 << 30, u64::MAX].map(Waiting::connections_for);
        assert_eq!(bounds, [32, 32, 256, 1024, 1024]);
    }

    #[test]
    fn shares_shrink_and_never_add_up_to_more_than_there_is() {
        let mut waiting = Waiting::new(64);
        let mut shares = Vec::new();
        while let Some(share) = waiting.share(shares.len() as u64) {
            waiting.granted.insert(shares.len() as u64, share + 1);
            shares.push(share);
        }
        assert!(shares.is_sorted_by(|a, b| a >= b) && shares[0] == 4 && shares.len() > 10, "{shares:?}");
        assert!(waiting.granted.values().sum::<u32>() <= 64);
        // One that listens again keeps what it has, also when nothing is left.
        for (inode, share) in (0..).zip(shares) {
            assert_eq!(waiting.share(inode), Some(share), "{inode}");
        }
    }

    #[test]
    fn a_listener_that_listens_again_gets_more_where_others_have_gone() {
        let mut waiting = Waiting::new(64);
        waiting.granted.extend([(1, 60), (2, 2)]);
        assert_eq!(waiting.share(2), Some(1));
        waiting.granted.remove(&1);
        assert_eq!(waiting.share(2), Some(4));
    }
}
