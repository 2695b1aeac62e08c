//! One conversation with a supervisor that keeps its sandbox still.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use saggar_domain::{Code, Problem};
use saggar_sandbox::RootChanges;
use saggar_supervisor::control::{Client, Op, Received, Reply};

/// Time limit of each answer: the kernel freezes a large sandbox in far less.
const PATIENCE: Duration = Duration::from_secs(30);
/// The most that reading its files may take: less than a supervisor keeps a sandbox still.
const READING_MAX: Duration = Duration::from_secs(50);

/// A sandbox that stands still until this is dropped.
pub(super) struct Still {
    client: Client,
    since: Instant,
    was_paused: bool,
}

impl Still {
    /// Freezes it. What it changed can be read until [`Still::go_on`].
    pub(super) fn begin(socket: &Path) -> Result<(Self, RootChanges), Problem> {
        let mut client = Client::connect(socket).map_err(|_| gone())?;
        client.set_patience(PATIENCE).map_err(|_| gone())?;
        let since = Instant::now();
        let stillness = match client.request(Op::KeepStill).map_err(|_| gone())? {
            Reply::Still(stillness) => stillness,
            Reply::Error(problem) => return Err(problem),
            _ => return Err(broken()),
        };
        let upper: OwnedFd = client.take_descriptor().ok_or_else(broken)?;
        let changes = RootChanges::of_held(upper, stillness.base);
        Ok((Self { client, since, was_paused: stillness.was_paused }, changes))
    }

    /// Refuses to read on: it may go on by itself soon.
    pub(super) fn check_time(&self) -> Result<(), Problem> {
        if self.since.elapsed() < READING_MAX { Ok(()) } else { Err(too_long()) }
    }

    /// Lets it go on. Returns for how long it stood still on our account.
    pub(super) fn go_on(mut self) -> Result<Duration, Problem> {
        self.client.ask(Op::GoOn).map_err(|_| gone())?;
        match self.client.receive().map_err(|_| gone())? {
            Received::Reply(Reply::WentOn { was_still: true }) if self.was_paused => Ok(Duration::ZERO),
            Received::Reply(Reply::WentOn { was_still: true }) => Ok(self.since.elapsed()),
            Received::Reply(Reply::WentOn { was_still: false }) => Err(too_long()),
            Received::Reply(_) | Received::Output { .. } => Err(broken()),
            Received::End => Err(gone()),
        }
    }
}

fn too_long() -> Problem {
    Problem::new(
        Code::TooMany,
        "the sandbox could not be kept still for as long as reading its files takes",
        "pause it, then take the snapshot",
    )
}

fn gone() -> Problem {
    Problem::new(
        Code::SandboxEnded,
        "the sandbox ended while its files were read",
        "nothing is left of the snapshot; take one earlier",
    )
}

fn broken() -> Problem {
    Problem::new(Code::Internal, "the sandbox's supervisor broke the protocol", "report it")
}
