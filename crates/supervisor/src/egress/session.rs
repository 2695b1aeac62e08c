//! The supervisor's end of a session.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use saggar_domain::Problem;
use saggar_domain::net::{EgressDraft, NetDecision};

use super::message::{FromEgress, GateCounts, HostAnswer, Open, ToEgress};
use super::wire::{self, PATIENCE, gone, unexpected};

/// Messages that came while an answer was waited for.
const EARLY_MAX: usize = 1024;

/// A connection to the egress process.
#[derive(Debug)]
pub struct Session {
    socket: OwnedFd,
    early: VecDeque<FromEgress>,
    /// Of the secrets, in the order of `open`.
    placeholders: Vec<String>,
}

/// The file of a session that is recorded, or that is answered from a recording.
#[derive(Debug)]
pub enum Tape {
    /// Empty, and open for appending.
    Record(OwnedFd),
    Replay(OwnedFd),
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
        Ok((Self::over(ours), theirs))
    }

    /// Connects to the egress process that serves the sandboxes of a server.
    pub fn connect(address: &Path) -> Result<Self, Errno> {
        wire::connect(address).map(Self::over)
    }

    fn over(socket: OwnedFd) -> Self {
        Self { socket, early: VecDeque::new(), placeholders: Vec::new() }
    }

    /// Opens the session, and doesn't wait for it to be ready. `files` are those in which the secrets are.
    pub fn open(&mut self, open: Open, files: &[BorrowedFd<'_>]) -> Result<(), Problem> {
        wire::say(&self.socket, &ToEgress::Open(Box::new(open)), files)
    }

    /// Waits until the session is ready. Returns the certificate that the sandbox has to trust.
    pub fn certificate(&mut self) -> Result<String, Problem> {
        match self.answer()? {
            FromEgress::Opened { ca_pem, placeholders } => {
                self.placeholders = placeholders;
                Ok(ca_pem)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// What programs get in place of the secrets, in the order of `open`. None before the session is ready.
    pub fn placeholders(&self) -> &[String] {
        &self.placeholders
    }

    /// Hands over the gates, and waits until they are served. They must be in the order of the counts.
    pub fn hand_over(&mut self, counts: GateCounts, gates: &[BorrowedFd<'_>]) -> Result<(), Problem> {
        self.send_gates(counts, gates)?;
        match self.answer()? {
            FromEgress::Listening {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Hands over the recording, before the gates. Returns what is wrong with one that can be used nevertheless.
    pub fn hand_tape(&mut self, tape: &Tape) -> Result<Option<String>, Problem> {
        let (message, file) = match tape {
            Tape::Record(file) => (ToEgress::Record {}, file),
            Tape::Replay(file) => (ToEgress::Replay {}, file),
        };
        wire::say(&self.socket, &message, &[file.as_fd()])?;
        match (tape, self.answer()?) {
            (Tape::Record(_), FromEgress::Recording {}) => Ok(None),
            (Tape::Replay(_), FromEgress::Replaying { warning, .. }) => Ok(warning),
            (_, other) => Err(unexpected(&other)),
        }
    }

    /// Answers a question. If it fails, the session is over, which the next read tells.
    pub fn answer_question(&self, question: u64, answer: HostAnswer) {
        // As said above.
        let _ = wire::say(&self.socket, &ToEgress::Answer { question, answer }, &[]);
    }

    /// The same without waiting.
    pub(super) fn send_gates(&mut self, counts: GateCounts, gates: &[BorrowedFd<'_>]) -> Result<(), Problem> {
        wire::say(&self.socket, &ToEgress::Gates(counts), gates)
    }

    /// Replaces the rules, and waits until they are in force.
    pub fn replace_rules(&mut self, rules: EgressDraft) -> Result<(), Problem> {
        self.send_rules(rules)?;
        match self.answer()? {
            FromEgress::Ruled {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// The same without waiting.
    pub(super) fn send_rules(&mut self, rules: EgressDraft) -> Result<(), Problem> {
        wire::say(&self.socket, &ToEgress::Rules(rules), &[])
    }

    /// Asks for the decisions about what was refused so far. Doesn't wait.
    pub(super) fn settle(&mut self) -> Result<(), Problem> {
        wire::say(&self.socket, &ToEgress::Settle {}, &[])
    }

    /// The next message, if there is one.
    pub fn hear(&mut self) -> Heard {
        if let Some(early) = self.early.pop_front() {
            return Heard::Message(early);
        }
        match wire::receive(&self.socket) {
            Ok(Some(message)) => Heard::Message(message),
            Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
            Ok(None) | Err(_) => Heard::Closed,
        }
    }

    /// Waits for decisions until `is_enough` has seen what it wants; what it takes isn't heard again.
    pub fn await_decisions(&mut self, mut is_enough: impl FnMut(&NetDecision) -> bool) -> Result<(), Problem> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            wire::check(deadline)?;
            match self.hear() {
                Heard::Message(FromEgress::Decision(decision)) if is_enough(&decision) => return Ok(()),
                Heard::Message(FromEgress::Failed(problem)) => return Err(problem),
                Heard::Message(_) => {}
                Heard::Closed => return Err(gone("it ended")),
                Heard::Nothing => wire::wait(&self.socket, deadline)?,
            }
        }
    }

    /// Says that nothing more comes. The other side sends its last decisions and ends.
    pub fn close(&self) {
        // If it fails, the session is over already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Write);
    }

    /// Ends the session, and waits for its last decisions: connections end when the sandbox does, and each is reported.
    pub fn finish(mut self, patience: Duration, take: &mut dyn FnMut(FromEgress)) {
        self.close();
        let deadline = Instant::now() + patience;
        while wire::check(deadline).is_ok() {
            match self.hear() {
                Heard::Message(message) => take(message),
                Heard::Closed => return,
                Heard::Nothing if wire::wait(&self.socket, deadline).is_err() => return,
                Heard::Nothing => {}
            }
        }
    }

    /// The answer to the last message. Decisions that come before it are kept.
    fn answer(&mut self) -> Result<FromEgress, Problem> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match wire::next(&self.socket, deadline)? {
                FromEgress::Failed(problem) => return Err(problem),
                early @ (FromEgress::Decision(_)
                | FromEgress::Connected(_)
                | FromEgress::Dropped { .. }
                | FromEgress::RecordingFailed { .. }
                | FromEgress::Question { .. }) => {
                    if self.early.len() < EARLY_MAX {
                        self.early.push_back(early);
                    }
                }
                answer => return Ok(answer),
            }
        }
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
