//! Events, in the order they happened, one JSON object per line.
//!
//! Events contain no secrets and no host paths of Saggar: the types here have no field for one.

use serde::Serialize;

use crate::canonical::PolicyHash;
use crate::denial::Denial;
use crate::exec::{ExecStatus, NetworkReport, Usage};
use crate::id::{ExecId, SandboxId};
use crate::mode::{FsMode, Tier, User};
use crate::net::NetDecision;
use crate::problem::Problem;

pub const EVENT_SCHEMA: &str = "saggar.event/v1";

/// One event with its position in the sequence.
#[derive(Clone, Debug, Serialize)]
pub struct Event<'a> {
    pub schema: &'static str,
    /// 0, 1, 2 … without a gap within one exec.
    pub seq: u64,
    /// Wall clock, RFC 3339 in UTC.
    pub time: String,
    /// Milliseconds since the start of set-up, by the monotonic clock.
    pub elapsed_ms: u64,
    pub sandbox_id: &'a SandboxId,
    pub exec_id: &'a ExecId,
    /// Hash of the policy in force; absent if the spec was refused before there was one.
    pub policy_hash: Option<&'a PolicyHash>,
    #[serde(flatten)]
    pub body: EventBody,
}

#[derive(Clone, Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventBody {
    /// The spec was accepted and the sandbox is being created.
    Setup {
        tier: Tier,
        fs: FsMode,
        user: User,
        /// Default limits that this host can't enforce.
        unenforced: Vec<String>,
    },
    /// The network mode in force.
    Network(NetworkReport),
    /// The program started.
    Start {
        /// The program's name as requested.
        program: String,
    },
    /// The egress process decided about a connection or a request.
    Decision(NetDecision),
    /// Something was refused.
    Denial(Denial),
    /// A limit was hit.
    Limit(Denial),
    /// The whole process tree has ended.
    Finish {
        status: ExecStatus,
        exit_code: Option<u8>,
        signal: Option<u8>,
        usage: Usage,
        /// Set unless the end was an ordinary one.
        error: Option<Problem>,
    },
}
