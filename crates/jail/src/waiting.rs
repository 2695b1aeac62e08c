//! Connections that wait to be accepted: a bound on them for the whole sandbox.
//!
//! What arrives on a TCP connection before `accept` is charged to no cgroup, and neither is the connection itself. The kernel bounds the
//! queue of each listener, but not the number of listeners. So every `listen` comes to the host, which makes the call itself, on a copy
//! of the descriptor, with a backlog that is still left for the sandbox. It notes how much each listener was given, by inode, and
//! looks up in the sandbox's list of sockets which of them are still there.
//!
//! A helper process makes the call. Whatever kind of descriptor a program hands over, nothing that the helper does with it can hold up the
//! supervisor: closing a socket that lingers, for one, takes as long as the program likes, unless it is closed by a process that ends.
//!
//! Sockets of other kinds get what they ask for: what waits at a unix socket is charged to who sent it. A unix socket remembers who
//! listened, and tells its clients, so the helper has the caller's ids then. (Its process id is not the caller's: clients inside see 0.)

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};

use crate::seccomp::{Listener, Notification};
use crate::sys::{Cloned, checked, clone3, exit_now};

/// How long the helper may take. It makes a handful of calls, of which none should wait.
const PATIENCE: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };
/// Bytes of the list of sockets that are looked at; more than the listeners there can be.
const LIST_BYTES_MAX: u64 = 1 << 20;
/// What the kernel shows as the state of a listening socket.
const LISTENING: &str = "0A";
/// One listener gets this part of what is left, so that the first doesn't take all.
const SHARE: u32 = 16;
const PIDFD_THREAD: libc::c_uint = libc::O_EXCL as libc::c_uint;

/// How many connections may wait in one sandbox, and who was given how many.
#[derive(Debug)]
pub struct Waiting {
    connections_max: u32,
    /// Connections that may wait at each listener, by the inode of its socket.
    granted: BTreeMap<u64, u32>,
    /// Set when a helper did not come back: nothing is known of that listener, so there are no more.
    is_closed: bool,
}

impl Waiting {
    /// A bound for one sandbox.
    pub fn new(connections_max: u32) -> Self {
        Self { connections_max, granted: BTreeMap::new(), is_closed: false }
    }

    /// Connections that may wait in a sandbox of so much memory. With the receive buffers that a private network has they
    /// hold an eighth of it at most, where that is more than 8 MiB.
    pub fn connections_for(memory_bytes: u64) -> u32 {
        const BYTES_EACH: u64 = 256 << 10;
        u32::try_from(memory_bytes / 8 / BYTES_EACH).unwrap_or(u32::MAX).clamp(32, 1024)
    }

    /// Makes a call of `listen` for the one that waits. ENOBUFS when no more connections may wait.
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

    /// The largest backlog for this socket. The kernel lets one more connection wait than the backlog says. A socket that listens already
    /// keeps what it has: a program may call `listen` again, and must not get less for it.
    fn share(&self, inode: u64) -> Option<u32> {
        let own = self.granted.get(&inode).copied().unwrap_or(0);
        let granted: u32 = self.granted.values().sum();
        let left = self.connections_max.saturating_sub(granted - own);
        let share = (left >= 2).then(|| (left / SHARE).max(1));
        share.max(own.checked_sub(1).filter(|own| *own > 0))
    }
}

/// A process that has the caller's descriptors. Kernels before 6.9 know none of a thread, only of the whole process, which may have others
/// only if the program wants it so.
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
    // SAFETY: the kernel just made this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// The effective user and group of a thread, as they are outside of its sandbox.
fn ids_of(thread: Pid) -> Result<[u32; 2], Errno> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", thread.as_raw_nonzero()))
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::SRCH))?;
    let effective = |name: &str| {
        let ids = status.lines().find_map(|line| line.strip_prefix(name))?;
        ids.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    Ok([effective("Uid:").ok_or(Errno::SRCH)?, effective("Gid:").ok_or(Errno::SRCH)?])
}

/// Takes these ids for good. Runs in the helper, and leaves alone what is so already: an ordinary user's sandboxes have that user's ids.
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

/// A process that makes one call, tells of it, and ends.
struct Helper {
    pid: Pid,
    answer: OwnedFd,
}

impl Helper {
    /// Starts it. Where nothing is left it makes the call only for sockets that need nothing.
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
                // If nobody reads it, the supervisor has given us up.
                let _ = rustix::io::write(&tell, &bytes);
                // Not one descriptor is closed before: see above.
                exit_now(0)
            }
            Cloned::Parent { pid, .. } => Ok(Self { pid: Pid::from_raw(pid).ok_or(Errno::SRCH)?, answer }),
        }
    }

    /// What came of it: the socket's inode and its backlog, if it is one that counts.
    fn finish(self) -> Result<Option<(u64, u32)>, Errno> {
        let mut waiting = [PollFd::new(&self.answer, PollFlags::IN)];
        let is_ready = poll(&mut waiting, Some(&PATIENCE)).is_ok_and(|count| count > 0);
        // Our own child. One that has answered has nothing left to do, and one that hasn't is given up.
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

    /// Waits for the end of one that was killed. That should take no time; where it does, it isn't waited for.
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
    // SAFETY: the kernel just made this descriptor. It is never closed by us, only by the end of this process.
    let socket = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(socket) });
    let domain = rustix::net::sockopt::socket_domain(&*socket)?;
    if domain != rustix::net::AddressFamily::INET && domain != rustix::net::AddressFamily::INET6 {
        become_user(ids)?;
        return rustix::net::listen(&*socket, asked).map(|()| (0, 0));
    }
    let inode = rustix::fs::fstat(&*socket)?.st_ino;
    let share = waiting.share(inode).ok_or(Errno::NOBUFS)?;
    // The kernel takes a negative number for a very large one.
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
