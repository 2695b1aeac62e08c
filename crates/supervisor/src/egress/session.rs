//! The supervisor's end of a session.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use saggar_domain::net::{EgressDraft, NetDecision};
use saggar_domain::{Code, Problem};

use super::message::{FromEgress, GateCounts, MESSAGE_MAX, Open, ToEgress};

/// How long the egress process may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of descriptors in one message.
const DESCRIPTORS_MAX: usize = 16;
/// Messages that came while an answer was waited for.
const EARLY_MAX: usize = 1024;

/// A connection to the egress process.
#[derive(Debug)]
pub struct Session {
    socket: OwnedFd,
    early: VecDeque<FromEgress>,
}

/// The result of a read that doesn't wait.
#[derive(Debug)]
pub enum Heard {
    Message(FromEgress),
    /// Nothing now.
    Nothing,
    /// The egress process closed the session or is gone. The sandbox has no network from here on.
    Closed,
}

impl Session {
    /// Returns a session, and the end that the egress process gets.
    pub fn pair() -> Result<(Self, OwnedFd), Errno> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self { socket: ours, early: VecDeque::new() }, theirs))
    }

    /// Opens the session, and doesn't wait for it to be ready.
    pub fn open(&mut self, open: Open) -> Result<(), Problem> {
        self.say(&ToEgress::Open(Box::new(open)), &[])
    }

    /// Waits until the session is ready. Returns the certificate that the sandbox has to trust.
    pub fn certificate(&mut self) -> Result<String, Problem> {
        match self.answer()? {
            FromEgress::Opened { ca_pem } => Ok(ca_pem),
            other => Err(unexpected(&other)),
        }
    }

    /// Hands over the gates. They must be in the order of the counts.
    pub fn hand_over(&mut self, counts: GateCounts, gates: &[BorrowedFd<'_>]) -> Result<(), Problem> {
        self.say(&ToEgress::Gates(counts), gates)?;
        match self.answer()? {
            FromEgress::Listening {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Replaces the rules.
    pub fn replace_rules(&mut self, rules: EgressDraft) -> Result<(), Problem> {
        self.say(&ToEgress::Rules(rules), &[])?;
        match self.answer()? {
            FromEgress::Ruled {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// The next message, if there is one.
    pub fn hear(&mut self) -> Heard {
        if let Some(early) = self.early.pop_front() {
            return Heard::Message(early);
        }
        match receive(&self.socket, RecvFlags::DONTWAIT) {
            Ok(Some(message)) => Heard::Message(message),
            Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
            Ok(None) | Err(_) => Heard::Closed,
        }
    }

    /// Waits for decisions until `is_enough` has seen what it wants; what it takes isn't heard again.
    pub fn await_decisions(&mut self, mut is_enough: impl FnMut(&NetDecision) -> bool) -> Result<(), Problem> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.check(deadline)?;
            match self.hear() {
                Heard::Message(FromEgress::Decision(decision)) if is_enough(&decision) => return Ok(()),
                Heard::Message(FromEgress::Failed(problem)) => return Err(problem),
                Heard::Message(_) => {}
                Heard::Closed => return Err(gone("it ended")),
                Heard::Nothing => self.wait(deadline)?,
            }
        }
    }

    /// Ends the session, and waits for its last decisions: connections end when the sandbox does, and each is reported.
    pub fn finish(mut self, patience: Duration, take: &mut dyn FnMut(FromEgress)) {
        // If it fails, the session is over already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
        let deadline = Instant::now() + patience;
        while self.check(deadline).is_ok() {
            match self.hear() {
                Heard::Message(message) => take(message),
                Heard::Closed => return,
                Heard::Nothing if self.wait(deadline).is_err() => return,
                Heard::Nothing => {}
            }
        }
    }

    /// Every round of a loop has to ask: an egress process that keeps talking must not hold us.
    fn check(&self, deadline: Instant) -> Result<(), Problem> {
        if Instant::now() < deadline { Ok(()) } else { Err(gone("it took too long")) }
    }

    /// Waits until there is something to read, or the deadline has passed.
    fn wait(&self, deadline: Instant) -> Result<(), Problem> {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => Err(gone("it does not answer")),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(gone(&errno.to_string())),
        }
    }

    fn say(&self, message: &ToEgress, descriptors: &[BorrowedFd<'_>]) -> Result<(), Problem> {
        let bytes = serde_json::to_vec(message)
            .ok()
            .filter(|bytes| bytes.len() <= MESSAGE_MAX && descriptors.len() <= DESCRIPTORS_MAX)
            .ok_or_else(|| {
                Problem::new(
                    Code::InvalidValue,
                    format!("the sandbox's network rules are longer than {MESSAGE_MAX} bytes"),
                    "shorten them: a pattern such as `*.example.com` replaces many names",
                )
            })?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let has_room = descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors));
        debug_assert!(has_room, "as many as there is room for");
        sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
            .map(drop)
            .map_err(|errno| gone(&errno.to_string()))
    }

    /// The answer to the last message. Decisions that come before it are kept.
    fn answer(&mut self) -> Result<FromEgress, Problem> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.check(deadline)?;
            self.wait(deadline)?;
            match receive(&self.socket, RecvFlags::DONTWAIT) {
                Ok(Some(FromEgress::Failed(problem))) => return Err(problem),
                Ok(Some(early @ (FromEgress::Decision(_) | FromEgress::Dropped { .. }))) => {
                    if self.early.len() < EARLY_MAX {
                        self.early.push_back(early);
                    }
                }
                Ok(Some(answer)) => return Ok(answer),
                Ok(None) => return Err(gone("it ended")),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(gone(&errno.to_string())),
            }
        }
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// One message; `None` at the end. Descriptors that are attached are dropped by the kernel: there is no room for them.
fn receive(socket: &OwnedFd, flags: RecvFlags) -> Result<Option<FromEgress>, Errno> {
    let mut space = [];
    let (bytes, _) = receive_with(socket.as_fd(), flags, &mut space)?;
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
        return Err(Errno::MSGSIZE);
    }
    bytes.truncate(received.bytes);
    Ok(((received.bytes > 0).then_some(bytes), descriptors))
}

fn gone(why: &str) -> Problem {
    Problem::new(
        Code::SetupFailed,
        format!("the egress process of the sandbox's network failed: {why}"),
        "try again; `saggar doctor` shows whether this host can manage a sandbox's network",
    )
}

fn unexpected(answer: &FromEgress) -> Problem {
    debug_assert!(!matches!(answer, FromEgress::Failed(_)), "{answer:?}");
    gone("it gave another answer than it was asked for")
}
