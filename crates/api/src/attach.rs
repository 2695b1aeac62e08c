//! Messages on the WebSocket of an exec.
//!
//! Binary messages from the client are stdin. Binary messages from the server are output: one byte for the stream (1
//! stdout or the terminal, 2 stderr), then the bytes. Text messages are the JSON of the types here. The server closes
//! the connection after the last one.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use saggar_domain::{Beginning, ExecId, OutputStream, Signal, SignalScope};

use crate::exec::Exec;
use crate::problem::Problem;
use crate::schema;
use crate::stream::beginning;

/// Maximum size of a message in either direction, in bytes.
pub const ATTACH_MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Where in the output to attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct AttachQuery {
    /// `start` (the oldest kept output), `now`, or offsets in stdout and stderr such as `12-0`.
    #[param(value_type = Option<String>, pattern = "^(start|now|[0-9]{1,19}-[0-9]{1,19})$", example = "start")]
    #[serde(with = "beginning")]
    pub from: Beginning,
}

/// A message from the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum AttachRequest {
    /// Resize the terminal.
    Resize {
        /// Number of rows.
        rows: u16,
        /// Number of columns.
        cols: u16,
    },
    /// Send a signal.
    Signal {
        /// The signal.
        #[schema(value_type = schema::SignalName)]
        signal: Signal,
        /// The processes that get it.
        #[serde(default)]
        #[schema(value_type = schema::SignalScope)]
        scope: SignalScope,
    },
    /// Close stdin.
    StdinEnd,
}

/// A message from the server other than output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AttachReply {
    /// Attached; always the first message.
    Started {
        /// The exec.
        #[schema(value_type = schema::ExecId)]
        exec_id: ExecId,
        /// The program's process id inside the sandbox.
        pid: Option<u32>,
    },
    /// Output that is no longer kept was skipped.
    Gap {
        /// The stream.
        #[schema(value_type = schema::OutputStream)]
        stream: OutputStream,
        /// Number of skipped bytes.
        bytes: u64,
    },
    /// The program ended; always the last message.
    Exited {
        /// The ended exec.
        exec: Box<Exec>,
    },
    /// The connection can't continue; this is the last message.
    Failed {
        /// The reason.
        problem: Problem,
    },
    /// A message that this version doesn't know. Never sent, only read.
    #[serde(other)]
    Other,
}

/// Splits an output message into stream and bytes; `None` if its first byte names no stream.
pub fn split_output(message: &[u8]) -> Option<(OutputStream, &[u8])> {
    let (first, bytes) = message.split_first()?;
    Some((OutputStream::from_number(*first)?, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_on_the_wire() {
        for (request, json) in [
            (AttachRequest::Resize { rows: 40, cols: 120 }, r#"{"type":"resize","rows":40,"cols":120}"#),
            (
                AttachRequest::Signal { signal: Signal::INT, scope: SignalScope::Tree },
                r#"{"type":"signal","signal":"INT","scope":"tree"}"#,
            ),
            (AttachRequest::StdinEnd, r#"{"type":"stdin_end"}"#),
        ] {
            assert_eq!(serde_json::to_string(&request).unwrap(), json);
            assert_eq!(serde_json::from_str::<AttachRequest>(json).unwrap(), request);
        }
        assert!(serde_json::from_str::<AttachRequest>(r#"{"type":"resize","rows":1,"cols":1,"x":1}"#).is_err());
    }

    #[test]
    fn output_messages_come_apart() {
        assert_eq!(split_output(b"\x01hi"), Some((OutputStream::Stdout, &b"hi"[..])));
        assert_eq!(split_output(b"\x02"), Some((OutputStream::Stderr, &b""[..])));
        assert_eq!(split_output(b"\x03x"), None);
        assert_eq!(split_output(b""), None);
    }
}
