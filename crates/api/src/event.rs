//! Events of a sandbox: what happened to it, in order, each with its number.

use saggar_domain::{Denial, EndReason, ExecId, ExecState};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::schema;
use crate::time::Timestamp;

/// One event. As a server-sent event: `id` is its number, `event` its type, `data` this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxEvent {
    /// 1, 2, 3 … within one sandbox.
    pub seq: u64,
    /// When.
    #[schema(value_type = schema::Instant)]
    pub at: Timestamp,
    /// What.
    #[serde(flatten)]
    pub body: SandboxEventBody,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SandboxEventBody {
    /// It is ready.
    Started {
        /// Default limits that this host can't enforce.
        #[serde(default)]
        unenforced: Vec<String>,
    },
    /// It was made ahead of time, and got its owner.
    Claimed,
    /// It was frozen.
    Paused {
        /// Why.
        reason: PauseReason,
    },
    /// It goes on.
    Resumed,
    /// A program was started.
    ExecStarted {
        /// Which.
        #[schema(value_type = schema::ExecId)]
        exec_id: ExecId,
        /// The program's name as asked for.
        program: String,
    },
    /// A program ended.
    ExecEnded {
        /// Which.
        #[schema(value_type = schema::ExecId)]
        exec_id: ExecId,
        /// How.
        #[schema(value_type = schema::ExecState)]
        status: ExecState,
        /// Its exit code, when it exited.
        exit_code: Option<u8>,
        /// The signal's number, when one ended it.
        signal: Option<u8>,
    },
    /// The runtime refused something.
    Denied {
        /// What, by which rule.
        #[schema(value_type = schema::DenialShape)]
        denial: Denial,
    },
    /// A limit was hit.
    LimitReached {
        /// Which.
        #[schema(value_type = schema::DenialShape)]
        denial: Denial,
    },
    /// It is being ended.
    Ending {
        /// Why.
        #[schema(value_type = schema::EndReason)]
        reason: EndReason,
    },
    /// It is gone; always the last.
    Ended {
        /// Why.
        #[schema(value_type = schema::EndReason)]
        reason: EndReason,
        /// In words.
        detail: String,
    },
    /// Events that are no longer kept were passed over.
    Gap {
        /// How many.
        events: u64,
    },
    /// One that this version has no name for. Never sent, only read.
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
    /// A client asked for it.
    Asked,
    /// Its time to live or its idle timeout was up.
    TimeUp,
}

/// Which events to read. `Last-Event-ID` wins over `after`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct EventsQuery {
    /// Only those after this number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// How many at most; of a live stream there is no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
}

/// Events of a sandbox, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventList {
    /// The events.
    pub items: Vec<SandboxEvent>,
    /// The number of the last one there is, which may be after these.
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
