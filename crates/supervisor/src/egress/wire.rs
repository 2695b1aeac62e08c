//! Messages to and from the egress process, over a socket of packets.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, socket_with,
};
use saggar_domain::{Code, Problem};
use zeroize::{Zeroize as _, Zeroizing};

use super::message::{FromEgress, MESSAGE_MAX, ToEgress};

/// How long the egress process may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of descriptors in one message.
pub const DESCRIPTORS_MAX: usize = 16;

/// Connects without waiting: if too many others do at this moment, it fails.
pub(super) fn connect(address: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(address)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// Doesn't wait: if there is no room for the message, the other side doesn't read.
pub(super) fn say(socket: &OwnedFd, message: &ToEgress, descriptors: &[BorrowedFd<'_>]) -> Result<(), Problem> {
    say_bytes(socket, serde_json::to_vec(message).ok().map(Into::into), descriptors)
}

/// A message that is written already.
pub(super) fn say_bytes(
    socket: &OwnedFd,
    bytes: Option<Zeroizing<Vec<u8>>>,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Problem> {
    let bytes =
        bytes.filter(|bytes| bytes.len() <= MESSAGE_MAX && descriptors.len() <= DESCRIPTORS_MAX).ok_or_else(|| {
            Problem::new(
                Code::InvalidValue,
                format!("the sandbox's network rules and secrets are longer than {MESSAGE_MAX} bytes"),
                "shorten them: a pattern such as `*.example.com` replaces many names",
            )
        })?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let has_room = descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors));
    debug_assert!(has_room, "as many as there is room for");
    sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
        .map(drop)
        .map_err(|errno| gone(&errno.to_string()))
}

/// The next message, waited for until the deadline.
pub(super) fn next(socket: &OwnedFd, deadline: Instant) -> Result<FromEgress, Problem> {
    loop {
        check(deadline)?;
        wait(socket, deadline)?;
        match receive(socket) {
            Ok(Some(message)) => return Ok(message),
            Ok(None) => return Err(gone("it ended")),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(gone(&errno.to_string())),
        }
    }
}

/// Every round of a loop has to ask: an egress process that keeps talking must not hold us.
pub(super) fn check(deadline: Instant) -> Result<(), Problem> {
    if Instant::now() < deadline { Ok(()) } else { Err(gone("it took too long")) }
}

/// Waits until there is something to read, or the deadline has passed.
pub(super) fn wait(socket: &OwnedFd, deadline: Instant) -> Result<(), Problem> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
    match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
        Ok(0) => Err(gone("it does not answer")),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(gone(&errno.to_string())),
    }
}

/// One message, without waiting; `None` at the end. Descriptors that are attached are dropped by the kernel: there is no room for them.
pub(super) fn receive(socket: &OwnedFd) -> Result<Option<FromEgress>, Errno> {
    let mut space = [];
    let (bytes, _) = receive_with(socket.as_fd(), RecvFlags::DONTWAIT, &mut space)?;
    match bytes {
        Some(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|_| Errno::BADMSG),
        None => Ok(None),
    }
}

/// The bytes of one packet and the descriptors attached to it; no bytes at the end of the session. `space` is the room
/// for descriptors. A packet that is cut is an error.
pub fn receive_with(
    socket: BorrowedFd<'_>,
    flags: RecvFlags,
    space: &mut [MaybeUninit<u8>],
) -> Result<(Option<Vec<u8>>, Vec<OwnedFd>), Errno> {
    let mut bytes = vec![0u8; MESSAGE_MAX];
    let mut control = RecvAncillaryBuffer::new(space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags | RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if received.flags.contains(rustix::net::ReturnFlags::TRUNC) {
        // It may have values of secrets.
        bytes.zeroize();
        return Err(Errno::MSGSIZE);
    }
    bytes.truncate(received.bytes);
    Ok(((received.bytes > 0).then_some(bytes), descriptors))
}

pub(super) fn gone(why: &str) -> Problem {
    Problem::new(
        Code::SetupFailed,
        format!("the egress process of the sandbox's network failed: {why}"),
        "try again; `saggar doctor` shows whether this host can manage a sandbox's network",
    )
}

pub(super) fn unexpected(answer: &FromEgress) -> Problem {
    debug_assert!(!matches!(answer, FromEgress::Failed(_)), "{answer:?}");
    gone("it gave another answer than it was asked for")
}
