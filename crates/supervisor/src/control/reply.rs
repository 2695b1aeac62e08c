//! Replies of a sandbox's supervisor.

use std::collections::BTreeMap;

use saggar_domain::net::{EgressDraft, NetDecision};
use saggar_domain::template::{Account, TemplateId};
use saggar_domain::{
    DeadlineAction, Denial, EndReason, ExecId, ExecStatus, OutputStream, Problem, SandboxId, SandboxState,
    TemplateName, Usage,
};
use serde::{Deserialize, Serialize};

/// A reply, or one part of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The supervisor has started and the sandbox exists.
    Ready(Box<Description>),
    /// The sandbox's current state.
    Described(Box<Description>),
    /// The program runs.
    Started(Box<ExecDescription>),
    /// Output was skipped because it is no longer kept.
    Gap {
        /// On the wire its number, 1 or 2.
        #[serde(with = "stream_number")]
        stream: OutputStream,
        bytes: u64,
    },
    /// The program has ended, and all of its output has been sent.
    Exited(Box<ExecDescription>),
    /// The stream's descriptor comes with this.
    Opened,
    /// Every process of the sandbox stands still, and the directory of its changes comes with this.
    Still(Box<Stillness>),
    /// They may go on. Says whether they stood still without a break.
    WentOn {
        was_still: bool,
    },
    /// The variables that every program gets.
    Environment {
        env: BTreeMap<String, String>,
    },
    /// Done, without further data.
    Done,
    /// The sandbox's usage.
    Used(Box<UsageReport>),
    Event(Box<Event>),
    /// Events up to this number are no longer kept.
    EventsGone {
        /// The last one that is gone.
        through: u64,
    },
    /// The sandbox has ended.
    Killed(Box<Final>),
    /// The request failed.
    Error(Problem),
}

/// What is known of the changes of a sandbox that stands still.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stillness {
    /// The first id of the sandbox's range outside; `None` if it has a single id.
    pub base: Option<u32>,
    /// Whether it was paused anyway.
    pub was_paused: bool,
}

/// The stored template that a sandbox was started from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BasedOn {
    pub id: TemplateId,
    /// In whose store it is.
    pub project: String,
}

/// A sandbox as its supervisor sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Description {
    /// [`super::CONTROL`] of the supervisor.
    pub protocol: u32,
    /// Its version of Saggar.
    pub version: String,
    pub sandbox_id: SandboxId,
    /// The supervisor's process id.
    pub pid: u32,
    /// What it does.
    pub state: SandboxState,
    /// Whether it has an owner.
    pub is_claimed: bool,
    /// Milliseconds until its deadline; `None` for no deadline.
    pub ttl_left_ms: Option<u64>,
    pub then: DeadlineAction,
    /// Maximum idle time in milliseconds.
    pub idle_ms: Option<u64>,
    /// Current idle time in milliseconds.
    pub idle_for_ms: u64,
    /// The hash of its spec.
    pub policy_hash: String,
    /// Default limits that this host doesn't enforce.
    pub unenforced: Vec<String>,
    /// The remembered execs, oldest first.
    pub execs: Vec<ExecDescription>,
    /// The number of the newest event.
    pub last_event: u64,
    /// The agent's protocol version, which clients that open streams into the sandbox must know.
    #[serde(default = "first_guest_protocol")]
    pub guest_protocol: u32,
    /// The rules in force; `None` unless its network mode is `proxied`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressDraft>,
    /// The template that it was started from; `None` for one that is built in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub based_on: Option<BasedOn>,
    /// Of the user that the template names, if its programs run as that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    /// Whether its changes can be handed out ([`super::Op::KeepStill`]).
    #[serde(default)]
    pub has_changes: bool,
}

/// The version of supervisors that don't report one.
fn first_guest_protocol() -> u32 {
    2
}

/// An exec, running or finished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecDescription {
    pub exec_id: ExecId,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its working directory, as requested or by default.
    #[serde(default)]
    pub cwd: String,
    /// The tag that its starter gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Its process id inside.
    pub pid: u32,
    /// Whether it has a terminal.
    pub has_terminal: bool,
    /// Start time by the wall clock, in milliseconds since 1970.
    pub started_ms: u64,
    pub ended_ms: Option<u64>,
    /// How it ended; `None` while it runs.
    pub status: Option<ExecStatus>,
    pub exit_code: Option<u8>,
    pub signal: Option<u8>,
    /// Bytes written to stdout so far.
    pub stdout_bytes: u64,
    /// Bytes written to stderr so far.
    pub stderr_bytes: u64,
    /// Bytes of stdout that are no longer kept, from its beginning.
    pub stdout_dropped: u64,
    /// Bytes of stderr that are no longer kept, from its beginning.
    pub stderr_dropped: u64,
    /// Whether processes it started live on after its end. Known shortly after that, so never in [`Reply::Exited`].
    #[serde(default)]
    pub leaves_processes: bool,
    /// Whether it has no process left. Its end may not be reported yet because its output hasn't been read.
    #[serde(default)]
    pub is_deserted: bool,
    /// Resources it used; `None` while it runs and if they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Actions that were refused or cut off, each kind once. If a process can't be attributed to an exec, all execs
    /// that ran have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denials: Vec<Denial>,
    /// Set unless the end was an ordinary one.
    #[serde(default)]
    pub error: Option<Problem>,
}

/// Current and past usage of a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UsageReport {
    pub now: Sample,
    /// Earlier samples, oldest first.
    pub samples: Vec<Sample>,
}

/// Usage of a sandbox at one moment; `None` if this host doesn't count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// By the wall clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// CPU time so far, in microseconds.
    pub cpu_usec: Option<u64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Peak memory in bytes.
    pub memory_peak_bytes: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Bytes of private storage in use.
    pub disk_bytes: Option<u64>,
}

/// Something that happened in or to a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// 1, 2, 3 … without a gap within a sandbox.
    pub seq: u64,
    /// By the wall clock, in milliseconds since 1970.
    pub at_ms: u64,
    pub body: EventBody,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum EventBody {
    /// The sandbox was started.
    Started {
        /// Default limits that this host can't enforce.
        unenforced: Vec<String>,
    },
    /// It was claimed by its owner.
    Claimed,
    /// A program started.
    ExecStarted {
        exec_id: ExecId,
        /// The program's name as requested.
        program: String,
    },
    /// A program ended.
    ExecEnded(Box<ExecDescription>),
    /// Something was refused.
    Denial { denial: Denial },
    /// A limit was hit.
    Limit { denial: Denial },
    /// The egress process decided about a connection or a request.
    Decision {
        /// The exec whose program asked; `None` if it can't be told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exec_id: Option<ExecId>,
        decision: Box<NetDecision>,
    },
    /// The rules of its network were replaced.
    RulesReplaced {
        /// The hash of its spec with the new rules.
        policy_hash: String,
    },
    /// The egress process ended. The sandbox has no network until `network_restored`.
    NetworkLost,
    /// Another egress process serves it, with the same rules and a new certificate authority.
    NetworkRestored,
    /// Every process in it was frozen.
    Paused {
        /// Whether it was paused at its deadline.
        by_itself: bool,
    },
    /// Every process in it continues.
    Resumed,
    /// All its programs were ended, and it began again with the files of a template.
    BeganAgain { template: TemplateName },
    /// It is being ended.
    Ending { reason: EndReason },
    /// An event that this version doesn't know.
    #[serde(other)]
    Unknown,
}

/// The final report of a sandbox, also kept as a file until a server has read it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Final {
    pub v: u32,
    pub sandbox_id: SandboxId,
    /// Whether it ever had an owner.
    pub is_claimed: bool,
    pub reason: EndReason,
    /// By the wall clock, in milliseconds since 1970.
    pub ended_ms: u64,
    pub usage: Sample,
    /// Its execs, with the end of their output.
    pub execs: Vec<FinishedExec>,
    /// The newest events, oldest first.
    pub events: Vec<Event>,
    /// Set unless the end was an ordinary one.
    pub error: Option<Problem>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FinishedExec {
    pub state: ExecDescription,
    /// The end of its stdout, in base64.
    pub stdout: String,
    /// The end of its stderr, in base64.
    pub stderr: String,
}

mod stream_number {
    use saggar_domain::OutputStream;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(stream: &OutputStream, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(stream.number())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<OutputStream, D::Error> {
        let number = u8::deserialize(deserializer)?;
        OutputStream::from_number(number).ok_or_else(|| de::Error::custom(format!("there is no stream {number}")))
    }
}
