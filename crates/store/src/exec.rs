//! Execs as rows: what was run in a sandbox, how it ended, and the last of what it printed.
//!
//! Of each sandbox the last thousand are kept, and the output of the last 64 of them: what a program runs in a loop can't fill
//! the disk of the host.

mod read;
mod record;

use saggar_domain::{ExecId, ExecStatus, GuestPath, SandboxId, Timestamp, User};

pub use record::ExecRecord;
pub(crate) use record::{lose_running, record};

/// Most finished execs kept of one sandbox.
pub const EXECS_PER_SANDBOX_MAX: u32 = 1_000;
/// Most finished execs of one sandbox whose output is kept.
pub const OUTPUTS_PER_SANDBOX_MAX: u32 = 64;
/// Most bytes kept of each stream.
const TAIL_BYTES_MAX: usize = 256 << 10;

/// An exec as it started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedExec {
    pub id: ExecId,
    /// Where it runs.
    pub sandbox: SandboxId,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its working directory, if one was asked for.
    pub cwd: Option<GuestPath>,
    /// Who it runs as.
    pub user: User,
    /// When it started.
    pub started_at: Timestamp,
}

/// An exec that started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    /// What was started.
    pub asked: StartedExec,
    /// How far it is.
    pub progress: ExecProgress,
}

/// How far an exec is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecProgress {
    Running,
    Ended(ExecEnd),
    /// The sandbox ended and nobody saw how this did.
    Lost {
        /// When the sandbox did.
        at: Timestamp,
    },
}

/// How an exec ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecEnd {
    pub at: Timestamp,
    pub status: ExecStatus,
    /// The program's exit code, when it exited.
    pub exit_code: Option<u8>,
    /// The signal's number, when one ended it.
    pub signal: Option<u8>,
}

/// The last of what an exec printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecOutput {
    pub stdout: Tail,
    pub stderr: Tail,
}

/// The last bytes of a stream: at most 256 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    bytes: Vec<u8>,
    dropped: u64,
}

impl Tail {
    /// Keeps the end of `bytes`, before which `dropped` more were printed.
    pub fn new(mut bytes: Vec<u8>, dropped: u64) -> Self {
        let excess = bytes.len().saturating_sub(TAIL_BYTES_MAX);
        bytes.drain(..excess);
        Self { bytes, dropped: dropped.saturating_add(excess as u64) }
    }

    /// The bytes that are kept.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many came before them.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}
