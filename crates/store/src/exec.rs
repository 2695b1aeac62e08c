//! Execs as rows: what was run in a sandbox, how it ended, and the end of its output.
//!
//! The last thousand execs of each sandbox are kept, and the output of the last 64, so that execs in a loop can't
//! fill the host's disk.

mod read;
mod record;

use saggar_domain::{ExecId, ExecStatus, GuestPath, SandboxId, Timestamp, User};

pub use record::ExecRecord;
pub(crate) use record::{lose_running, record};

/// Maximum number of finished execs kept per sandbox.
pub const EXECS_PER_SANDBOX_MAX: u32 = 1_000;
/// Maximum number of finished execs per sandbox whose output is kept.
pub const OUTPUTS_PER_SANDBOX_MAX: u32 = 64;
/// Maximum number of bytes kept of each stream.
const TAIL_BYTES_MAX: usize = 256 << 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedExec {
    pub id: ExecId,
    pub sandbox: SandboxId,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// The requested working directory, if any.
    pub cwd: Option<GuestPath>,
    pub user: User,
    pub started_at: Timestamp,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec {
    pub asked: StartedExec,
    pub progress: ExecProgress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecProgress {
    Running,
    Ended(ExecEnd),
    /// The sandbox ended before this exec's end was seen.
    Lost {
        /// When the sandbox ended.
        at: Timestamp,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecEnd {
    pub at: Timestamp,
    pub status: ExecStatus,
    /// Set if the program exited.
    pub exit_code: Option<u8>,
    /// Number of the signal that ended the program.
    pub signal: Option<u8>,
}

/// The end of an exec's output.
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
    /// Keeps the end of `bytes`; `dropped` is the number of bytes before them.
    pub fn new(mut bytes: Vec<u8>, dropped: u64) -> Self {
        let excess = bytes.len().saturating_sub(TAIL_BYTES_MAX);
        bytes.drain(..excess);
        Self { bytes, dropped: dropped.saturating_add(excess as u64) }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Number of bytes before them that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }
}
