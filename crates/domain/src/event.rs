//! Events: what happened, as it happened, one JSON object a line.
//!
//! No secret and no host path of ours is in an event: the types here have no field for one.

use serde::Serialize;

use crate::canonical::PolicyHash;
use crate::denial::Denial;
use crate::exec::{ExecStatus, NetworkReport, Usage};
use crate::id::{ExecId, SandboxId};
use crate::mode::{FsMode, Tier, User};
use crate::problem::Problem;

/// The schema of [`Event`].
pub const EVENT_SCHEMA: &str = "saggar.event/v1";

/// One event with its place in the order.
#[derive(Clone, Debug, Serialize)]
pub struct Event<'a> {
    /// [`EVENT_SCHEMA`].
    pub schema: &'static str,
    /// 0, 1, 2 … without a gap within one exec.
    pub seq: u64,
    /// Wall clock, RFC 3339 in UTC.
    pub time: String,
    /// Milliseconds since the start of set-up, by a clock that doesn't jump.
    pub elapsed_ms: u64,
    pub sandbox_id: &'a SandboxId,
    pub exec_id: &'a ExecId,
    /// The boundary in force; absent when the spec was refused before there was one.
    pub policy_hash: Option<&'a PolicyHash>,
    #[serde(flatten)]
    pub body: EventBody,
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventBody {
    /// The spec was accepted and the sandbox is being made.
    Setup {
        /// The isolation primitive.
        tier: Tier,
        /// The filesystem mode.
        fs: FsMode,
        /// Who the program will run as.
        user: User,
        /// Default limits that aren't enforced here.
        unenforced: Vec<String>,
    },
    /// What was decided about the network.
    Network(NetworkReport),
    /// The program started.
    Start {
        /// Its name as asked for.
        program: String,
    },
    /// Something was refused.
    Denial(Denial),
    /// A limit was hit.
    Limit(Denial),
    /// The whole tree is gone.
    Finish {
        status: ExecStatus,
        /// The program's exit code.
        exit_code: Option<u8>,
        /// The signal that ended it.
        signal: Option<u8>,
        /// What it used.
        usage: Usage,
        /// Why it isn't an ordinary end.
        error: Option<Problem>,
    },
}
