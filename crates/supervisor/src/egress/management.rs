//! A server's connection to the egress process of its sandboxes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

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
        match ask(&socket, &ToEgress::Manage { v: EGRESS }).map_err(ManageError::Failed)? {
            FromEgress::Managing { version, sessions } => Ok(Self { socket, version, sessions }),
            other => Err(ManageError::Failed(unexpected(&other))),
        }
    }

    /// Replaces all secrets of a sandbox. Fails with `sandbox_ended` if it has no session; then it gets them with its next one.
    pub fn bind(&mut self, sandbox: SandboxId, secrets: Vec<Grant>) -> Result<(), Problem> {
        wire::say_bytes(&self.socket, SecretsOf { sandbox_id: sandbox, secrets }.bytes(), &[])?;
        match answer(&self.socket)? {
            FromEgress::Bound {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// Tells all sessions that the host's network has changed.
    pub fn replace_upstream(&mut self, upstream: Upstream) -> Result<(), Problem> {
        match ask(&self.socket, &ToEgress::UpstreamNow(upstream))? {
            FromEgress::Ruled {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    /// The process takes no new session, and ends with its last one.
    pub fn retire(&mut self) -> Result<(), Problem> {
        match ask(&self.socket, &ToEgress::Retire {})? {
            FromEgress::Retired {} => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

impl AsFd for Management {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn ask(socket: &OwnedFd, message: &ToEgress) -> Result<FromEgress, Problem> {
    wire::say(socket, message, &[])?;
    answer(socket)
}

fn answer(socket: &OwnedFd) -> Result<FromEgress, Problem> {
    match wire::next(socket, Instant::now() + PATIENCE)? {
        FromEgress::Failed(problem) => Err(problem),
        answer => Ok(answer),
    }
}
