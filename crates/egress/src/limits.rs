//! Limits of one session. Each of them bounds something that the sandbox, or a server that it talks to, could make grow.

use std::time::Duration;

use crate::recording::RecordingLimits;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that a session may hold at once, from both entrances; and as many to servers.
    pub connections: usize,
    /// Connections to one host at once. Requests beyond are answered with 429.
    pub connections_per_host: usize,
    /// Bytes of a session in both directions, over its whole life.
    pub bytes: Option<u64>,
    /// The same for one host.
    pub bytes_per_host: Option<u64>,
    /// The head of a request or of an answer: its first line and its headers, in bytes. At least 8 KiB.
    pub head_bytes: usize,
    /// Until the whole head of a request is there. A kept connection without a request ends after it, too.
    pub head_time: Duration,
    /// Until the client's TLS handshake is complete.
    pub handshake_time: Duration,
    /// Until the server is connected, its TLS handshake included.
    pub connect_time: Duration,
    /// Until a server has bound the secrets of a session that waits for them.
    pub secrets_time: Duration,
    /// Without a byte in either direction, while a request or a tunnel is open.
    pub idle_time: Duration,
    /// Allowed decisions that wait for the supervisor, and as many denied ones. Those beyond are summed up by host.
    pub decisions: usize,
    pub recording: RecordingLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_host: 512,
            bytes: None,
            bytes_per_host: None,
            head_bytes: 64 * 1024,
            head_time: Duration::from_secs(75),
            handshake_time: Duration::from_secs(15),
            connect_time: Duration::from_secs(30),
            secrets_time: Duration::from_secs(10),
            // A model may think for ten minutes before it sends the first byte.
            idle_time: Duration::from_secs(15 * 60),
            decisions: 1024,
            recording: RecordingLimits::default(),
        }
    }
}

/// Requests of one HTTP/2 connection at once.
pub(crate) const STREAMS_MAX: u32 = 100;
/// HTTP/1.1 connections to servers that one HTTP/2 connection of a client may use at once: one for each stream, so that no long
/// answer holds up another.
pub(crate) const UPSTREAMS_PER_CONNECTION: usize = STREAMS_MAX as usize;
/// A body that is read whole because an AWS signature covers it.
pub(crate) const SIGNED_BODY_MAX: usize = 16 * 1024 * 1024;
/// All such bodies of a session together.
pub(crate) const SIGNED_BODIES_MAX: usize = 64 * 1024 * 1024;
/// How long the last bytes of an answer are held back, because a secret could begin in them, if nothing follows. A server that pauses longer
/// in the middle of a value shows its beginning; so this is longer than most round trips.
pub(crate) const HELD_TIME: Duration = Duration::from_millis(250);
/// The buffer of one direction of a tunnel. Larger ones measured no faster.
pub(crate) const COPY_BUFFER: usize = 8 * 1024;

/// From here on a stream between two sockets goes through a pipe of its own: below, making the pipe costs more than it saves.
pub(crate) const SPLICE_FROM: usize = 256 * 1024;
/// What a pipe holds unless it is told otherwise.
pub(crate) const PIPE_BYTES: usize = 64 * 1024;

/// How much of HTTP/2 may be buffered in one direction, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Windows {
    pub stream: u32,
    pub connection: u32,
}

/// Towards the sandbox there is no distance to bridge.
const NEAR: Windows = Windows { stream: 256 * 1024, connection: 1024 * 1024 };
/// A tenth of a second of distance at 10 MB/s.
const FAR: Windows = Windows { stream: 1024 * 1024, connection: 2 * 1024 * 1024 };
const CROWDED: Windows = Windows { stream: 64 * 1024, connection: 128 * 1024 };
/// Connections of a session from which on memory comes before speed.
const CROWD: usize = 64;

impl Windows {
    /// Towards servers, if the session has so many connections.
    pub fn far(connections: usize) -> Self {
        if connections < CROWD { FAR } else { CROWDED }
    }

    /// Towards the sandbox.
    pub fn near(connections: usize) -> Self {
        if connections < CROWD { NEAR } else { CROWDED }
    }
}
