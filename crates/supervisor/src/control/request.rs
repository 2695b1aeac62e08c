//! Requests to a sandbox's supervisor.

use std::collections::BTreeMap;
use std::path::PathBuf;

use saggar_domain::net::EgressDraft;
use saggar_domain::{
    Beginning, DeadlineAction, Draft, ExecId, ExecSpec, SandboxId, Signal, SignalScope, TemplateName, TerminalSize,
    User,
};
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
    /// Whether the server binds secrets to the sandbox's network. Its programs have no network while they are not bound.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uses_secrets: bool,
    /// Whose stored templates the spec's name is looked up in; without it, those of the user who runs the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_project: Option<String>,
    /// The same for its volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_project: Option<String>,
    /// The number of the last event of a sandbox that had a supervisor before; 0 for a new one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub events_before: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
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
        /// The rules of a proxied sandbox; one from the pool has none and reaches nothing until then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        egress: Option<EgressDraft>,
        /// As in [`Start`].
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        uses_secrets: bool,
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
        /// Sent as its number on Linux.
        #[serde(with = "signal_number")]
        signal: Signal,
        scope: SignalScope,
        /// Whether `done` comes only once the exec has no process left, however long that takes. A supervisor that
        /// doesn't know this field answers at once.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        wait: bool,
    },
    /// Resize a program's terminal: `done`.
    Resize { exec_id: ExecId, size: TerminalSize },
    /// Open a byte stream into the sandbox: `opened`, with its descriptor attached.
    Open { target: Target, user: User },
    /// Set new terms from now on: `described`.
    SetTerms { terms: Terms },
    /// Replace the rules of a proxied sandbox: `described`, once they are in force. Connections that they forbid are cut.
    SetEgress {
        egress: EgressDraft,
        /// As in [`Start`], from now on.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        uses_secrets: bool,
    },
    /// Record that the sandbox is in use in a way that the supervisor can't see: `done`.
    Touch,
    /// Freeze every process of the sandbox: `described`.
    Pause,
    /// Keep every process of the sandbox still until this connection ends: `still`, with the directory of its changes attached.
    KeepStill,
    /// Tell the variables that every program gets: `environment`. They are stored nowhere, because they may contain secrets.
    Environment,
    /// Let them go on: `went_on`. Only on a connection that keeps them still.
    GoOn,
    /// End every program, and begin again with the files of a template: `described`, once the sandbox is usable. Its id, its owner's variables
    /// and terms stay.
    BeginAgain {
        template: TemplateName,
        /// Whose stored templates the name is looked up in.
        template_project: String,
    },
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
    /// Sent as what a supervisor does of it, so that one of an earlier version understands it.
    #[serde(serialize_with = "as_supervisor_does")]
    pub then: DeadlineAction,
    /// Maximum idle time in milliseconds; `None` for no limit.
    #[serde(default)]
    pub idle_ms: Option<u64>,
}

fn as_supervisor_does<S: serde::Serializer>(then: &DeadlineAction, serializer: S) -> Result<S::Ok, S::Error> {
    then.of_supervisor().serialize(serializer)
}

/// A program to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StartExec {
    /// Its id, which the server chose.
    pub exec_id: ExecId,
    #[serde(flatten)]
    pub spec: ExecSpec,
    /// Whether this connection then follows it.
    #[serde(default)]
    pub follow: bool,
    /// Whether another connection will feed its stdin; otherwise this one does, if it follows.
    #[serde(default)]
    pub is_fed_apart: bool,
}

/// Which exec to follow, and from where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attach {
    pub exec_id: ExecId,
    pub from: Beginning,
    /// Whether this connection feeds its stdin. Only one connection can at a time.
    #[serde(default)]
    pub stdin: bool,
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
