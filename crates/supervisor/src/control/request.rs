//! Requests to a sandbox's supervisor.

use std::collections::BTreeMap;
use std::path::PathBuf;

use saggar_domain::{Draft, ExecId, SandboxId, User};
use serde::{Deserialize, Serialize};

/// The first message to a supervisor, on its standard input: the sandbox to hold.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// [`super::CONTROL`] of the process that starts it.
    pub v: u32,
    /// The directory of records, control sockets and final reports.
    pub data_directory: PathBuf,
    pub sandbox_id: SandboxId,
    pub spec: Draft,
    pub terms: Terms,
    /// Whether it is created ahead for the pool: it then has no owner until it is claimed, and of its terms only the
    /// time to live applies until then.
    #[serde(default)]
    pub is_pooled: bool,
}

/// A request. The operation decides the kind of reply.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// The client's protocol version.
    pub v: u32,
    #[serde(flatten)]
    pub op: Op,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// Describe the sandbox: `described`.
    Describe,
    /// Give a pooled sandbox to its owner: `described`.
    Claim {
        /// They apply from now on.
        terms: Terms,
        /// Added to the environment of every exec; the exec's own variables take precedence.
        #[serde(default)]
        env: BTreeMap<String, String>,
    },
    /// Start a program: `started`, then the replies of [`Op::Attach`] if it follows.
    Exec(Box<StartExec>),
    /// Follow a program: `started`, output frames, `gap`, and finally `exited`. Stdin frames and [`Op::StdinEnd`],
    /// [`Op::Signal`] and [`Op::Resize`] may be sent on the same connection, and are not answered there.
    Attach(Attach),
    /// End stdin. Only on a connection that follows with `stdin`.
    StdinEnd {
        /// Which exec; `None` for the one that the connection follows.
        #[serde(default)]
        exec_id: Option<ExecId>,
    },
    /// Signal a program: `done`.
    Signal {
        exec_id: ExecId,
        /// The number on Linux.
        signal: u8,
        scope: Scope,
        /// Whether `done` comes only once the exec has no process left, however long that takes. A supervisor that
        /// doesn't know this field answers at once.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        wait: bool,
    },
    /// Resize a program's terminal: `done`.
    Resize { exec_id: ExecId, size: WindowSize },
    /// Open a byte stream into the sandbox: `opened`, with its descriptor attached.
    Open { target: Target, user: User },
    /// Set new terms from now on: `described`.
    SetTerms { terms: Terms },
    /// Record that the sandbox is in use in a way that the supervisor can't see: `done`.
    Touch,
    /// Freeze every process of the sandbox: `described`.
    Pause,
    /// Resume them: `described`.
    Resume {
        /// New terms from now on; `None` continues with the remaining time.
        #[serde(default)]
        terms: Option<Terms>,
    },
    /// Report current and past usage: `used`.
    Usage,
    /// Send events after this number, and new ones as they happen: `event`s until the connection ends.
    Events {
        /// The last one that the client has; 0 for none.
        after: u64,
    },
    /// End the sandbox: `killed`, once everything in it is dead and nothing of it is left on the host.
    Kill,
}

/// The lifetime of a sandbox. Times are relative to now, so clocks need not agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Milliseconds until it ends; `None` for no end.
    pub ttl_ms: Option<u64>,
    pub then: Then,
    /// Maximum idle time in milliseconds; `None` for no limit.
    #[serde(default)]
    pub idle_ms: Option<u64>,
}

/// What happens when time is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    Kill,
    /// It is paused.
    Pause,
}

/// A program to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartExec {
    /// Its id, which the server chose.
    pub exec_id: ExecId,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Its environment; it takes precedence over the sandbox's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory; `None` for the sandbox's.
    #[serde(default)]
    pub cwd: Option<String>,
    /// The user it runs as; `None` for the sandbox's user.
    #[serde(default)]
    pub user: Option<User>,
    /// Whether it gets a stdin; otherwise it reads an end of file.
    #[serde(default)]
    pub stdin: bool,
    /// A terminal of this size.
    #[serde(default)]
    pub tty: Option<WindowSize>,
    /// Milliseconds until its whole process tree is ended.
    #[serde(default)]
    pub timeout_ms: Option<u64>,
    /// Its own limits, within the sandbox's.
    #[serde(default)]
    pub limits: Option<PerExec>,
    /// Bytes of its output that are kept; `None` for the default.
    #[serde(default)]
    pub output_bytes: Option<u64>,
    /// A tag that the starter chooses, shown to other clients later.
    #[serde(default)]
    pub tag: Option<String>,
    /// Whether this connection then follows it.
    #[serde(default)]
    pub follow: bool,
    /// Whether another connection will feed its stdin; otherwise this one does, if it follows.
    #[serde(default)]
    pub is_fed_apart: bool,
}

/// Limits of one exec, within the sandbox's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PerExec {
    #[serde(default)]
    pub memory: Option<u64>,
    /// Processes and threads.
    #[serde(default)]
    pub pids: Option<u64>,
    /// Thousandths of a CPU.
    #[serde(default)]
    pub cpu_millis: Option<u32>,
}

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowSize {
    pub rows: u16,
    /// Characters in a line.
    pub cols: u16,
}

/// Which exec to follow, and from where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attach {
    pub exec_id: ExecId,
    pub from: From,
    /// Whether this connection feeds its stdin. Only one connection can at a time.
    #[serde(default)]
    pub stdin: bool,
}

/// Where in a program's output to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum From {
    /// With the oldest output that is kept.
    Start,
    /// With the next output.
    Now,
    /// After this many bytes of each stream.
    Offsets { stdout: u64, stderr: u64 },
}

/// Which processes a signal is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The program's process group.
    Group,
    /// Everything the program has started, daemonised processes too.
    Tree,
}

/// The other end of a byte stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A file session (`saggar_guest::FileRequest`).
    Files,
    /// The listener on this port of the sandbox's loopback.
    Port(u16),
}
