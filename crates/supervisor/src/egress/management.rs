//! A server's connection to the egress process of its sandboxes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use saggar_domain::secret::Grant;
use saggar_domain::{Problem, SandboxId};

use super::message::{EGRESS, FromEgress, SecretsOf, ToEgress, Upstream};
use super::wire::{self, PATIENCE, unexpected};

/// Readable only when the process has ended: it says nothing unasked.
#[derive(Debug)]
pub struct Management {
    socket: OwnedFd,
    /// The process's version of Saggar.
    pub version: String,
    /// The sessions that it had when we connected.
    pub sessions: usize,
    /// Whether it can lead calls of models to a server.
    pub leads_models: bool,
    patience: Duration,
    /// Questions whose answers didn't come in time. The process answers each question once and in order, so as many answers are to be
    /// thrown away before the next one counts.
    late: u32,
}

/// Why there is none.
#[derive(Debug)]
pub enum ManageError {
    /// Nothing listens there.
    Absent(Errno),
    /// What listens there doesn't answer as it should.
    Failed(Problem),
}

impl Management {
    /// Connects, and waits for the answer.
    pub fn connect(address: &Path) -> Result<Self, ManageError> {
        let socket = wire::connect(address).map_err(ManageError::Absent)?;
        let mut this =
            Self { socket, version: String::new(), sessions: 0, leads_models: false, patience: PATIENCE, late: 0 };
        match this.ask(&ToEgress::Manage { v: EGRESS }).map_err(ManageError::Failed)? {
            FromEgress::Managing { version, sessions, leads_models } => {
                Ok(Self { version, sessions, leads_models, ..this })
            }
            other => Err(ManageError::Failed(unexpected(&other))),
        }
    }

    /// Replaces all secrets of a sandbox. Fails with `sandbox_ended` if it has no session; then it gets them with its next one.
    pub fn bind(&mut self, sandbox: SandboxId, secrets: Vec<Grant>) -> Result<(), Problem> {
        wire::say_bytes(&self.socket, SecretsOf { sandbox_id: sandbox, secrets }.bytes(), &[])?;
        match self.answer()? {
            FromEgress::Bound {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Tells all sessions that the host's network has changed.
    pub fn replace_upstream(&mut self, upstream: Upstream) -> Result<(), Problem> {
        match self.ask(&ToEgress::UpstreamNow(upstream))? {
            FromEgress::Ruled {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Leads calls of models to this end of [`super::model_sockets`], and to no earlier one.
    pub fn lead_models(&mut self, socket: BorrowedFd<'_>) -> Result<(), Problem> {
        wire::say(&self.socket, &ToEgress::Models {}, &[socket])?;
        match self.answer()? {
            FromEgress::ModelsKnown {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// The process takes no new session, and ends with its last one.
    pub fn retire(&mut self) -> Result<(), Problem> {
        match self.ask(&ToEgress::Retire {})? {
            FromEgress::Retired {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Throws away answers that came late. Doesn't wait. While one is unread, the end of the connection can't be seen.
    pub fn forget_late(&mut self) {
        while self.late > 0 && matches!(wire::receive(&self.socket), Ok(Some(_))) {
            self.late -= 1;
        }
    }

    fn ask(&mut self, message: &ToEgress) -> Result<FromEgress, Problem> {
        wire::say(&self.socket, message, &[])?;
        self.answer()
    }

    /// The answer to the question that was sent last.
    fn answer(&mut self) -> Result<FromEgress, Problem> {
        let deadline = Instant::now() + self.patience;
        // Counted until it is there.
        self.late += 1;
        loop {
            wire::check(deadline)?;
            wire::wait(&self.socket, deadline)?;
            let answer = match wire::receive(&self.socket) {
                Ok(Some(answer)) => Some(answer),
                // It counts as one.
                Err(Errno::BADMSG | Errno::MSGSIZE) => None,
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Ok(None) => return Err(wire::gone("it ended")),
                Err(errno) => return Err(wire::gone(&errno.to_string())),
            };
            self.late -= 1;
            match answer {
                _ if self.late > 0 => {}
                Some(FromEgress::Failed(problem)) => return Err(problem),
                Some(answer) => return Ok(answer),
                None => return Err(wire::gone("its answer can't be understood")),
            }
        }
    }
}

impl AsFd for Management {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
    use saggar_domain::Code;

    use super::*;

    fn answer(process: &OwnedFd, message: &FromEgress) {
        rustix::net::send(process, &serde_json::to_vec(message).unwrap(), SendFlags::NOSIGNAL).unwrap();
    }

    fn managing() -> (Management, OwnedFd) {
        let family = rustix::net::AddressFamily::UNIX;
        let (socket, process) = socketpair(family, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let version = String::new();
        (Management { socket, version, sessions: 0, leads_models: true, patience: PATIENCE, late: 0 }, process)
    }

    fn sandbox() -> SandboxId {
        SandboxId::parse("sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap()
    }

    fn no_session() -> FromEgress {
        FromEgress::Failed(Problem::new(Code::SandboxEnded, "no session", "none"))
    }

    #[test]
    fn an_answer_that_comes_late_is_not_taken_for_the_next_one() {
        let (mut management, process) = managing();
        management.patience = Duration::ZERO;
        for _ in 0..2 {
            let problem = management.bind(sandbox(), Vec::new()).unwrap_err();
            assert_eq!(problem.code, Code::SetupFailed, "{problem:?}");
        }
        for message in [no_session(), no_session(), FromEgress::Bound {}, no_session()] {
            answer(&process, &message);
        }
        management.patience = PATIENCE;
        management.bind(sandbox(), Vec::new()).unwrap();
        assert_eq!(management.bind(sandbox(), Vec::new()).unwrap_err().code, Code::SandboxEnded);
    }

    #[test]
    fn late_answers_can_be_thrown_away_without_a_question() {
        let (mut management, process) = managing();
        management.patience = Duration::ZERO;
        assert!(management.retire().is_err());
        answer(&process, &FromEgress::Retired {});
        // A peer that closes with the question unread would be an error instead of an end.
        rustix::net::recv(&process, &mut [0u8; 64][..], RecvFlags::empty()).unwrap();
        drop(process);
        management.forget_late();
        // Only the end is left.
        let (_, left) = rustix::net::recv(&management, &mut [0u8; 1][..], RecvFlags::DONTWAIT).unwrap();
        assert_eq!((left, management.late), (0, 0));
    }
}
