//! What the process that holds a sandbox answers.

use saggar_domain::{
    DeadlineAction, Denial, EndReason, ExecId, ExecStatus, OutputStream, Problem, SandboxId, SandboxState, Usage,
};
use serde::{Deserialize, Serialize};

/// An answer, or one piece of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To the start of a supervisor: the sandbox is there.
    Ready(Box<Description>),
    /// What the sandbox is now.
    Described(Box<Description>),
    /// The program runs.
    Started(Box<ExecDescription>),
    /// Output that is no longer kept was passed over.
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
    /// Done, and there is nothing to say.
    Done,
    /// What it uses.
    Used(Box<UsageReport>),
    Event(Box<Event>),
    /// Events up to this number are no longer kept.
    EventsGone {
        /// The last that is gone.
        through: u64,
    },
    /// It is no more.
    Killed(Box<Final>),
    /// It was not done, and why.
    Error(Problem),
}

/// A sandbox as its supervisor sees it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Description {
    /// [`super::CONTROL`] of the supervisor.
    pub protocol: u32,
    /// Its version of Saggar.
    pub version: String,
    pub sandbox_id: SandboxId,
    /// The supervisor's process.
    pub pid: u32,
    /// What it does.
    pub state: SandboxState,
    /// Whether it has an owner.
    pub is_claimed: bool,
    /// Milliseconds until its time is up; `None` for never.
    pub ttl_left_ms: Option<u64>,
    pub then: DeadlineAction,
    /// How long it may be idle.
    pub idle_ms: Option<u64>,
    /// How long it has been.
    pub idle_for_ms: u64,
    /// The hash of its spec.
    pub policy_hash: String,
    /// Default limits that this host doesn't enforce.
    pub unenforced: Vec<String>,
    /// The execs that are remembered, oldest first.
    pub execs: Vec<ExecDescription>,
    /// The number of the newest event.
    pub last_event: u64,
    /// What its agent speaks, which streams into the sandbox have to know.
    #[serde(default = "first_guest_protocol")]
    pub guest_protocol: u32,
}

/// That of supervisors that don't say.
fn first_guest_protocol() -> u32 {
    2
}

/// An exec, running or finished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecDescription {
    pub exec_id: ExecId,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its working directory, as it was asked for or by default.
    #[serde(default)]
    pub cwd: String,
    /// What whoever started it called it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Its process id inside.
    pub pid: u32,
    /// Whether it has a terminal.
    pub has_terminal: bool,
    /// When it began, by the wall clock, in milliseconds since 1970.
    pub started_ms: u64,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// How it ended; `None` while it runs.
    pub status: Option<ExecStatus>,
    /// Its exit code.
    pub exit_code: Option<u8>,
    /// The signal that ended it.
    pub signal: Option<u8>,
    /// Bytes written to stdout so far.
    pub stdout_bytes: u64,
    /// Bytes written to stderr so far.
    pub stderr_bytes: u64,
    /// Bytes of stdout that are no longer kept, from its beginning.
    pub stdout_dropped: u64,
    /// Bytes of stderr that are no longer kept, from its beginning.
    pub stderr_dropped: u64,
    /// Whether processes it started live on after its end. Known a moment after that, so never in [`Reply::Exited`].
    #[serde(default)]
    pub leaves_processes: bool,
    /// Whether there is no process of it any more, though its end may not be told yet because its output isn't taken.
    #[serde(default)]
    pub is_deserted: bool,
    /// What it used; `None` while it runs and where nobody counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// What was refused to it and cut off from it, each once. Where it can't be told whose process it was, all that ran have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denials: Vec<Denial>,
    /// Why it isn't an ordinary end.
    #[serde(default)]
    pub error: Option<Problem>,
}

/// What a sandbox uses and has used.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UsageReport {
    pub now: Sample,
    /// Earlier, oldest first.
    pub samples: Vec<Sample>,
}

/// What a sandbox used at one moment; `None` where this host doesn't count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When, by the wall clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// CPU time so far, in microseconds.
    pub cpu_usec: Option<u64>,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Most bytes of memory at once.
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
    /// The sandbox is there.
    Started {
        /// Default limits that aren't enforced here.
        unenforced: Vec<String>,
    },
    /// It was given to its owner.
    Claimed,
    /// A program started.
    ExecStarted {
        exec_id: ExecId,
        /// Its name as asked for.
        program: String,
    },
    /// A program ended.
    ExecEnded(Box<ExecDescription>),
    /// Something was refused.
    Denial { denial: Denial },
    /// A limit was hit.
    Limit { denial: Denial },
    /// Everything in it is frozen.
    Paused {
        /// Whether because time was up.
        by_itself: bool,
    },
    /// Everything in it goes on.
    Resumed,
    /// It is being ended.
    Ending { reason: EndReason },
    /// Something newer than its reader.
    #[serde(other)]
    Unknown,
}

/// The last word about a sandbox, also kept as a file until a server has read it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Final {
    /// The version of this record.
    pub v: u32,
    pub sandbox_id: SandboxId,
    /// Whether it ever had an owner.
    pub is_claimed: bool,
    /// Why it ended.
    pub reason: EndReason,
    /// When, by the wall clock, in milliseconds since 1970.
    pub ended_ms: u64,
    /// What it used.
    pub usage: Sample,
    /// What ended with it or had before, with what was kept of the output.
    pub execs: Vec<FinishedExec>,
    /// The newest events, oldest first.
    pub events: Vec<Event>,
    /// Why it isn't an ordinary end.
    pub error: Option<Problem>,
}

/// An exec with the end of its output.
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
