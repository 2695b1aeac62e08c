//! What is asked of the process that holds a sandbox.

use std::collections::BTreeMap;
use std::path::PathBuf;

use saggar_domain::{Beginning, DeadlineAction, ExecId, ExecSpec, SandboxId, Signal, SignalScope, TerminalSize, User};
use serde::{Deserialize, Serialize};

/// How a supervisor is told what to hold: the first thing it reads, on its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    /// [`super::CONTROL`] of whoever starts it.
    pub v: u32,
    /// Where records, control sockets and final reports are.
    pub data_directory: PathBuf,
    /// The sandbox to be.
    pub sandbox_id: SandboxId,
    /// Its spec, as a draft in JSON (`saggar.spec/v1`).
    pub spec: serde_json::Value,
    /// How long it lives.
    pub terms: Terms,
    /// Whether it is made ahead: it then has no owner until it is claimed, and of its terms only
    /// the time to live holds until then.
    #[serde(default)]
    pub is_pooled: bool,
}

/// A request. What it asks decides what comes back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// What the asker speaks.
    pub v: u32,
    /// What is asked.
    #[serde(flatten)]
    pub op: Op,
}

/// What is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub enum Op {
    /// Everything about the sandbox: `described`.
    Describe,
    /// Give a sandbox that was made ahead to its owner: `described`.
    Claim {
        /// From now on.
        terms: Terms,
        /// Added to the environment of every exec, below the exec's own.
        #[serde(default)]
        env: BTreeMap<String, String>,
    },
    /// Start a program: `started`, then what [`Op::Attach`] gives if it follows.
    Exec(Box<StartExec>),
    /// Follow a program: `started`, output frames, `gap`, and at last `exited`. Stdin frames and [`Op::StdinEnd`], [`Op::Signal`] and
    /// [`Op::Resize`] may be sent on the same connection, and are not answered there.
    Attach(Attach),
    /// No more stdin. Only on a connection that follows with `stdin`.
    StdinEnd {
        /// Which exec; `None` for the one that the connection follows.
        #[serde(default)]
        exec_id: Option<ExecId>,
    },
    /// Signal a program: `done`.
    Signal {
        exec_id: ExecId,
        /// On the wire its number on Linux.
        #[serde(with = "signal_number")]
        signal: Signal,
        scope: SignalScope,
        /// Whether `done` comes only when there is no process of the exec any more, however long that takes. A supervisor that doesn't know
        /// this answers at once.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        wait: bool,
    },
    /// A program's terminal has a new size: `done`.
    Resize { exec_id: ExecId, size: TerminalSize },
    /// A byte stream into the sandbox: `opened`, with its descriptor attached.
    Open { target: Target, user: User },
    /// New terms from now on: `described`.
    SetTerms { terms: Terms },
    /// Somebody uses the sandbox in a way that can't be seen from here: `done`.
    Touch,
    /// Freeze every process of the sandbox: `described`.
    Pause,
    /// Let them go on: `described`.
    Resume {
        /// From now on; `None` goes on with what was left.
        #[serde(default)]
        terms: Option<Terms>,
    },
    /// What the sandbox uses and has used: `used`.
    Usage,
    /// Events after this number, and as they happen: `event`s until the connection ends.
    Events {
        /// The last that the asker has; 0 for none.
        after: u64,
    },
    /// End it: `killed`, when everything in it is dead and nothing of it is left on the host.
    Kill,
}

/// How long a sandbox lives. Times are spans from now, so no two clocks have to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Milliseconds until it ends; `None` for no end.
    pub ttl_ms: Option<u64>,
    /// What happens then.
    pub then: DeadlineAction,
    /// Milliseconds that it may be without use; `None` for any number.
    #[serde(default)]
    pub idle_ms: Option<u64>,
}

/// A program to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartExec {
    /// Its id, which the server chose.
    pub exec_id: ExecId,
    /// What to start.
    #[serde(flatten)]
    pub spec: ExecSpec,
    /// Whether this connection goes on to follow it.
    #[serde(default)]
    pub follow: bool,
    /// Whether another connection will feed its stdin; else this one does, if it follows.
    #[serde(default)]
    pub is_fed_apart: bool,
}

/// Whom to follow, and from where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attach {
    pub exec_id: ExecId,
    pub from: Beginning,
    /// Whether this connection feeds its stdin. One at a time does.
    #[serde(default)]
    pub stdin: bool,
}

/// What a byte stream leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A session about files (`saggar_guest::FileRequest`).
    Files,
    /// What listens on this port of the sandbox's loopback.
    Port(u16),
}

mod signal_number {
    use saggar_domain::Signal;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(signal: &Signal, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(signal.number())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Signal, D::Error> {
        let number = u8::deserialize(deserializer)?;
        Signal::from_number(number)
            .ok_or_else(|| de::Error::custom(format!("there is no signal {number}: give a number from 1 to 64")))
    }
}
