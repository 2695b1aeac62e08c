//! The output stream of an exec, resumable at any byte.
//!
//! Each event is one server-sent event: `event` is its type, `data` this JSON with the same type, and `id` the
//! offsets in both streams after it, so that `Last-Event-ID` says exactly what a client has received.

use std::fmt;

use saggar_domain::ExecId;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
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
}

/// An output stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutputStream {
    /// Standard output, or the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How much of both streams a client has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// Bytes of stdout.
    pub stdout: u64,
    /// Bytes of stderr.
    pub stderr: u64,
}

impl Offsets {
    /// Parses `12-0`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let read = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        text.split_once('-')
            .and_then(|(stdout, stderr)| Some(Self { stdout: read(stdout)?, stderr: read(stderr)? }))
            .ok_or_else(|| {
                format!("{text:?} is not a position in a stream: write the offsets in stdout and stderr, such as 12-0")
            })
    }

    /// The position after an event.
    pub fn after(self, event: &ExecEvent) -> Self {
        let Self { stdout, stderr } = self;
        let length = |bytes: &Bytes| bytes.0.len() as u64;
        match event {
            ExecEvent::Stdout { bytes } => Self { stdout: stdout.saturating_add(length(bytes)), stderr },
            ExecEvent::Stderr { bytes } => Self { stdout, stderr: stderr.saturating_add(length(bytes)) },
            ExecEvent::Gap { stream: OutputStream::Stdout, bytes } => {
                Self { stdout: stdout.saturating_add(*bytes), stderr }
            }
            ExecEvent::Gap { stream: OutputStream::Stderr, bytes } => {
                Self { stdout, stderr: stderr.saturating_add(*bytes) }
            }
            ExecEvent::Started { .. } | ExecEvent::Exited { .. } | ExecEvent::Failed { .. } | ExecEvent::Other => self,
        }
    }
}

impl fmt::Display for Offsets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.stdout, self.stderr)
    }
}

/// Where a stream begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beginning {
    /// With the oldest kept output.
    #[default]
    Start,
    /// With new output only.
    Now,
    /// After these offsets.
    Offsets(Offsets),
}

impl Beginning {
    /// Parses `start`, `now` or `12-0`.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "start" => Ok(Self::Start),
            "now" => Ok(Self::Now),
            place => Offsets::parse(place).map(Self::Offsets),
        }
    }
}

impl Serialize for Beginning {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Start => serializer.serialize_str("start"),
            Self::Now => serializer.serialize_str("now"),
            Self::Offsets(offsets) => serializer.collect_str(offsets),
        }
    }
}

impl<'de> Deserialize<'de> for Beginning {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

/// Which part of an exec's output to follow. `Last-Event-ID` takes precedence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct StreamQuery {
    /// `start` (the oldest kept output), `now`, or offsets in stdout and stderr such as `12-0`.
    #[param(value_type = Option<String>, pattern = "^(start|now|[0-9]{1,19}-[0-9]{1,19})$", example = "start")]
    pub from: Beginning,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_and_prints() {
        let place = Offsets { stdout: 12, stderr: 0 };
        assert_eq!(Offsets::parse("12-0"), Ok(place));
        assert_eq!(place.to_string(), "12-0");
        for wrong in ["", "-", "12", "1-2-3", "+1-0", "1--1", " 1-0", "99999999999999999999-0"] {
            assert!(Offsets::parse(wrong).is_err(), "{wrong}");
        }
    }

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
    fn the_place_moves_by_what_was_read_or_passed_over() {
        let start = Offsets { stdout: 1, stderr: 2 };
        let after = start
            .after(&ExecEvent::Stdout { bytes: Bytes(b"abc".to_vec()) })
            .after(&ExecEvent::Gap { stream: OutputStream::Stderr, bytes: 10 });
        assert_eq!(after, Offsets { stdout: 4, stderr: 12 });
    }
}
