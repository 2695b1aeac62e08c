//! The output stream of an exec, resumable at any byte.
//!
//! Each event is one server-sent event: `event` is its type, `data` this JSON with the same type, and `id` the
//! offsets in both streams after it, so that `Last-Event-ID` says exactly what a client has received.

use saggar_domain::{Beginning, ExecId, Offsets, OutputStream};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::bytes::{Bytes, Written};
use crate::exec::Exec;
use crate::problem::Problem;
use crate::schema;

/// An event of an exec's stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ExecEvent {
    /// The exec runs; always the first event.
    Started {
        /// The exec's id, for later requests.
        #[schema(value_type = schema::ExecId)]
        exec_id: ExecId,
        /// The program's process id inside the sandbox.
        pid: Option<u32>,
    },
    /// Output on stdout.
    Stdout {
        /// The bytes.
        #[serde(flatten)]
        #[schema(value_type = Written)]
        bytes: Bytes,
    },
    /// Output on stderr.
    Stderr {
        /// The bytes.
        #[serde(flatten)]
        #[schema(value_type = Written)]
        bytes: Bytes,
    },
    /// Output that is no longer kept was skipped.
    Gap {
        /// The stream.
        #[schema(value_type = schema::OutputStream)]
        stream: OutputStream,
        /// Number of skipped bytes.
        bytes: u64,
    },
    /// The program ended; always the last event.
    Exited {
        /// The ended exec.
        exec: Box<Exec>,
    },
    /// The stream can't continue; this is the last event.
    Failed {
        /// The reason.
        problem: Problem,
    },
    /// An event that this version doesn't know. Never sent, only read.
    #[serde(other)]
    Other,
}

impl ExecEvent {
    /// The event's type.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Started { .. } => "started",
            Self::Stdout { .. } => "stdout",
            Self::Stderr { .. } => "stderr",
            Self::Gap { .. } => "gap",
            Self::Exited { .. } => "exited",
            Self::Failed { .. } => "failed",
            Self::Other => "other",
        }
    }

    /// The place after this event.
    pub fn place_after(&self, place: Offsets) -> Offsets {
        match self {
            Self::Stdout { bytes } => place.after(OutputStream::Stdout, bytes.0.len() as u64),
            Self::Stderr { bytes } => place.after(OutputStream::Stderr, bytes.0.len() as u64),
            Self::Gap { stream, bytes } => place.after(*stream, *bytes),
            Self::Started { .. } | Self::Exited { .. } | Self::Failed { .. } | Self::Other => place,
        }
    }
}

/// Which part of an exec's output to follow. `Last-Event-ID` takes precedence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct StreamQuery {
    /// `start` (the oldest kept output), `now`, or offsets in stdout and stderr such as `12-0`.
    #[param(value_type = Option<String>, pattern = "^(start|now|[0-9]{1,19}-[0-9]{1,19})$", example = "start")]
    #[serde(with = "beginning")]
    pub from: Beginning,
}

/// In a query a beginning is text.
pub(crate) mod beginning {
    use saggar_domain::Beginning;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(crate) fn serialize<S: Serializer>(from: &Beginning, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(from)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Beginning, D::Error> {
        let text = String::deserialize(deserializer)?;
        Beginning::parse(&text).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_on_the_wire_has_its_type_beside_it() {
        for (event, json) in [
            (ExecEvent::Stdout { bytes: Bytes(b"hi\n".to_vec()) }, r#"{"type":"stdout","text":"hi\n"}"#),
            (ExecEvent::Stderr { bytes: Bytes(vec![0xff]) }, r#"{"type":"stderr","base64":"/w=="}"#),
            (
                ExecEvent::Gap { stream: OutputStream::Stdout, bytes: 7 },
                r#"{"type":"gap","stream":"stdout","bytes":7}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&event).unwrap(), json);
            assert_eq!(serde_json::from_str::<ExecEvent>(json).unwrap(), event);
        }
        assert_eq!(serde_json::from_str::<ExecEvent>(r#"{"type":"news","x":1}"#).unwrap(), ExecEvent::Other);
    }

    #[test]
    fn in_a_query_a_beginning_is_text() {
        for (from, text) in [
            (Beginning::Start, "start"),
            (Beginning::Now, "now"),
            (Beginning::Offsets(Offsets { stdout: 12, stderr: 0 }), "12-0"),
        ] {
            let query = StreamQuery { from };
            assert_eq!(serde_json::to_value(query).unwrap(), serde_json::json!({ "from": text }));
            assert_eq!(serde_json::from_value::<StreamQuery>(serde_json::json!({ "from": text })).unwrap(), query);
        }
    }

    #[test]
    fn the_place_moves_by_what_was_read_or_passed_over() {
        let read = ExecEvent::Stdout { bytes: Bytes(b"abc".to_vec()) };
        let missed = ExecEvent::Gap { stream: OutputStream::Stderr, bytes: 10 };
        let after = missed.place_after(read.place_after(Offsets { stdout: 1, stderr: 2 }));
        assert_eq!(after, Offsets { stdout: 4, stderr: 12 });
    }
}
