//! Events of a sandbox, in order, each with its number.

use saggar_domain::{Denial, EndReason, ExecId, ExecState};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::network::NetworkDecision;
use crate::schema;
use crate::time::Timestamp;

/// One event. As a server-sent event: `id` is its number, `event` its type, `data` this object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxEvent {
    /// 1, 2, 3 … within one sandbox.
    pub seq: u64,
    /// When it happened.
    #[schema(value_type = schema::Instant)]
    pub at: Timestamp,
    /// What happened.
    #[serde(flatten)]
    pub body: SandboxEventBody,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SandboxEventBody {
    /// The sandbox is ready.
    Started {
        /// Default limits that this host can't enforce.
        #[serde(default)]
        unenforced: Vec<String>,
    },
    /// The sandbox was taken from the pool and got its owner.
    Claimed,
    /// The sandbox was frozen.
    Paused {
        /// The reason.
        reason: PauseReason,
    },
    /// The sandbox was resumed.
    Resumed,
    /// A program was started.
    ExecStarted {
        /// The exec.
        #[schema(value_type = schema::ExecId)]
        exec_id: ExecId,
        /// The program's name, as requested.
        program: String,
    },
    /// A program ended.
    ExecEnded {
        /// The exec.
        #[schema(value_type = schema::ExecId)]
        exec_id: ExecId,
        /// How it ended.
        #[schema(value_type = schema::ExecState)]
        status: ExecState,
        /// Its exit code, if it exited.
        exit_code: Option<u8>,
        /// The number of the signal that ended it.
        signal: Option<u8>,
    },
    /// The runtime refused something.
    Denied {
        /// What was refused, and by which rule.
        #[schema(value_type = schema::DenialShape)]
        denial: Denial,
    },
    /// A limit was hit.
    LimitReached {
        /// The limit.
        #[schema(value_type = schema::DenialShape)]
        denial: Denial,
    },
    /// A connection or a request was allowed or denied.
    Decision {
        /// The decision.
        decision: Box<NetworkDecision>,
    },
    /// All programs were ended, and the sandbox began again with the files of a snapshot.
    RolledBack {
        /// The snapshot.
        template: String,
    },
    /// The network rules were replaced.
    RulesReplaced {
        /// Hash of the sandbox's boundary with the new rules.
        policy_hash: String,
    },
    /// The process that serves the network ended: the sandbox has no network until `network_restored`.
    NetworkLost,
    /// The network is back, with the same rules and a new certificate authority.
    NetworkRestored,
    /// The sandbox is being ended.
    Ending {
        /// The reason.
        #[schema(value_type = schema::EndReason)]
        reason: EndReason,
    },
    /// The sandbox has ended; always the last event.
    Ended {
        /// The reason.
        #[schema(value_type = schema::EndReason)]
        reason: EndReason,
        /// The reason, for people.
        detail: String,
    },
    /// Events that are no longer kept were skipped.
    Gap {
        /// Number of skipped events.
        events: u64,
    },
    /// An event that this version doesn't know. Never sent, only read.
    #[serde(other)]
    Other,
}

impl SandboxEventBody {
    /// The event's type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Claimed => "claimed",
            Self::Paused { .. } => "paused",
            Self::Resumed => "resumed",
            Self::ExecStarted { .. } => "exec_started",
            Self::ExecEnded { .. } => "exec_ended",
            Self::Denied { .. } => "denied",
            Self::LimitReached { .. } => "limit_reached",
            Self::Decision { .. } => "decision",
            Self::RolledBack { .. } => "rolled_back",
            Self::RulesReplaced { .. } => "rules_replaced",
            Self::NetworkLost => "network_lost",
            Self::NetworkRestored => "network_restored",
            Self::Ending { .. } => "ending",
            Self::Ended { .. } => "ended",
            Self::Gap { .. } => "gap",
            Self::Other => "other",
        }
    }
}

/// Why a sandbox was frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PauseReason {
    /// A client requested it.
    Asked,
    /// Its lifetime or its idle timeout expired.
    TimeUp,
}

/// Which events to read. `Last-Event-ID` takes precedence over `after`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Only events after this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Maximum number of events; a live stream has no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
}

/// Events of a sandbox, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// The events on this page.
    pub items: Vec<SandboxEvent>,
    /// The number of the newest event, which may be later than these.
    pub last_seq: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_on_the_wire_is_flat() {
        let event = SandboxEvent {
            seq: 3,
            at: Timestamp::from_millis(0),
            body: SandboxEventBody::Paused { reason: PauseReason::TimeUp },
        };
        let json = r#"{"seq":3,"at":"1970-01-01T00:00:00.000Z","type":"paused","reason":"time_up"}"#;
        assert_eq!(serde_json::to_string(&event).unwrap(), json);
        assert_eq!(serde_json::from_str::<SandboxEvent>(json).unwrap(), event);
        let newer = r#"{"seq":3,"at":"1970-01-01T00:00:00.000Z","type":"sublimated","to":"gas"}"#;
        assert_eq!(serde_json::from_str::<SandboxEvent>(newer).unwrap().body, SandboxEventBody::Other);
    }
}
