//! The lines of a recording.
//!
//! The first line is a header, and a header may come again: whatever follows then is of a new session with its own numbers. Lines of
//! several exchanges are mixed, in the order in which things happened.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

pub(super) const VERSION: u32 = 1;
/// Maximum length of a line. A head has at most 64 KiB, and JSON makes at most six of one byte.
pub(super) const LINE_MAX: usize = 1024 * 1024;
/// Maximum length of a piece of a body.
pub(super) const PIECE_MAX: usize = 64 * 1024;

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    SaggarRecording(Header),
    Request(Request),
    /// A piece of the request's body.
    Sent(Piece),
    Answer(Answer),
    /// A piece of the answer's body.
    Got(Piece),
    End(End),
    /// A connection whose content isn't recorded.
    Connection(Connection),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    pub v: u32,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Request {
    pub exchange: u64,
    pub method: String,
    pub scheme: String,
    pub host: String,
    pub port: u16,
    /// Path and query.
    pub target: String,
    pub headers: Vec<(String, String)>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub exchange: u64,
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    pub exchange: u64,
    #[serde(flatten)]
    pub content: Content,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Content {
    Text(String),
    Base64(String),
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    pub exchange: u64,
    /// Of the request's body.
    pub sha256: String,
    /// Whether the whole body of the request was read: a server may answer before.
    pub sent_whole: bool,
    pub outcome: Outcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trailers: Vec<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    Whole,
    /// The answer ended early, by the server or by the program.
    Cut,
    /// There was no answer, or it isn't recorded to its end.
    Failed,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Connection {
    pub host: String,
    pub port: u16,
    pub kind: ConnectionKind,
    /// Always false; for people who read the file.
    pub replayable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ConnectionKind {
    /// Bytes that pass as they are.
    Tcp,
    Websocket,
}

impl Content {
    pub fn of(bytes: &[u8]) -> Self {
        match str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Base64(STANDARD.encode(bytes)),
        }
    }

    pub fn into_bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Text(text) => Some(text.into_bytes()),
            Self::Base64(text) => STANDARD.decode(text).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_object_that_names_its_kind() {
        let piece = |content| Line::Got(Piece { exchange: 7, content });
        for (line, text) in [
            (Line::SaggarRecording(Header { v: 1 }), r#"{"saggar_recording":{"v":1}}"#),
            (piece(Content::of("data: é\n\n".as_bytes())), r#"{"got":{"exchange":7,"text":"data: é\n\n"}}"#),
            (piece(Content::of(b"\xff\x00")), r#"{"got":{"exchange":7,"base64":"/wA="}}"#),
        ] {
            assert_eq!(serde_json::to_string(&line).unwrap(), text);
            assert_eq!(serde_json::from_str::<Line>(text).unwrap(), line);
        }
    }

    #[test]
    fn content_comes_back_as_it_was() {
        for bytes in [&b"plain"[..], b"", b"\xf0\x9f", "\u{0}\u{1f}é".as_bytes()] {
            assert_eq!(Content::of(bytes).into_bytes().unwrap(), bytes);
        }
        assert_eq!(Content::Base64("!".to_owned()).into_bytes(), None);
    }
}
