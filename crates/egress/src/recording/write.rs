//! A session that is recorded.
//!
//! INVARIANT: every line is written with its end in one piece and under one lock, so a process that is killed leaves whole lines, and
//! at most one that is cut. An exchange without its `end` line isn't replayed.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::header::HeaderMap;
use http::{StatusCode, Uri};
use saggar_domain::net::Destination;
use sha2::{Digest as _, Sha256};

use super::line::{
    Answer, Connection, ConnectionKind, Content, End, Header, Line, Outcome, PIECE_MAX, Piece, Request, VERSION,
};
use super::redact;
use crate::notices::Notices;
use crate::secret::Secrets;

/// Bounds of one recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordingLimits {
    /// Of the file. Beyond it nothing is recorded, and the supervisor is told.
    pub bytes: u64,
    /// Of one body, in either direction. An exchange with a longer one isn't replayed.
    pub body_bytes: u64,
}

impl Default for RecordingLimits {
    fn default() -> Self {
        Self { bytes: 1024 * 1024 * 1024, body_bytes: 256 * 1024 * 1024 }
    }
}

pub(crate) struct Recorder {
    out: Mutex<Out>,
    next: AtomicU64,
    limits: RecordingLimits,
    notices: Notices,
}

struct Out {
    /// `None` after a failure.
    file: Option<File>,
    bytes: u64,
}

/// One exchange, until the bodies of both directions have ended.
pub(crate) struct Exchange {
    recorder: Arc<Recorder>,
    number: u64,
    state: Mutex<State>,
}

struct State {
    hash: Sha256,
    sent: u64,
    sent_whole: bool,
    got: u64,
    is_answered: bool,
    outcome: Option<Outcome>,
    reason: Option<String>,
    trailers: Vec<(String, String)>,
}

impl Recorder {
    /// Begins the recording. The file must be open for appending.
    pub fn begin(file: OwnedFd, limits: RecordingLimits, notices: Notices) -> io::Result<Self> {
        let recorder = Self {
            out: Mutex::new(Out { file: Some(file.into()), bytes: 0 }),
            next: AtomicU64::new(1),
            limits,
            notices,
        };
        recorder.try_write(&Line::SaggarRecording(Header { v: VERSION }))?;
        Ok(recorder)
    }

    pub fn exchange(
        self: &Arc<Self>,
        scheme: &str,
        to: &Destination,
        parts: &http::request::Parts,
        secrets: &Secrets,
    ) -> Arc<Exchange> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.write(&Line::Request(Request {
            exchange: number,
            method: parts.method.to_string(),
            scheme: scheme.to_owned(),
            host: to.host.to_string(),
            port: to.port,
            target: target_of(&parts.uri, secrets),
            headers: redact::headers(&parts.headers),
        }));
        let state = State {
            hash: Sha256::new(),
            sent: 0,
            sent_whole: false,
            got: 0,
            is_answered: false,
            outcome: None,
            reason: None,
            trailers: Vec::new(),
        };
        Arc::new(Exchange { recorder: Arc::clone(self), number, state: Mutex::new(state) })
    }

    pub fn connection(&self, to: &Destination, kind: ConnectionKind) {
        let (host, port) = (to.host.to_string(), to.port);
        self.write(&Line::Connection(Connection { host, port, kind, replayable: false }));
    }

    fn write(&self, line: &Line) {
        if let Err(error) = self.try_write(line) {
            self.notices.recording_failed(error.to_string());
        }
    }

    /// After a failure nothing more is written, because the last line may be cut. Only the first failure is returned.
    fn try_write(&self, line: &Line) -> io::Result<()> {
        let mut bytes = serde_json::to_vec(line)?;
        bytes.push(b'\n');
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let total = out.bytes + bytes.len() as u64;
        let Some(file) = out.file.as_mut() else { return Ok(()) };
        let written = match total <= self.limits.bytes {
            true => file.write_all(&bytes),
            false => Err(io::Error::other(format!("it would be longer than {} bytes", self.limits.bytes))),
        };
        match written {
            Ok(()) => out.bytes = total,
            Err(_) => out.file = None,
        }
        written
    }
}

impl Exchange {
    /// Bytes of the request's body.
    pub fn sent(&self, bytes: &[u8]) {
        let mut state = self.state();
        state.hash.update(bytes);
        let room = self.recorder.limits.body_bytes.saturating_sub(state.sent);
        state.sent += bytes.len() as u64;
        // Of a longer body, the hash is enough to match it.
        self.pieces(&bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))], Line::Sent);
    }

    /// One of the bodies has come to its end: the request's, if it `is_up`, or the answer's.
    pub fn is_whole(&self, is_up: bool) {
        let mut state = self.state();
        if is_up {
            state.sent_whole = true;
        } else {
            state.outcome.get_or_insert(Outcome::Whole);
        }
    }

    pub fn answered(&self, status: StatusCode, headers: &HeaderMap) {
        self.state().is_answered = true;
        let headers = redact::headers(headers);
        self.recorder.write(&Line::Answer(Answer { exchange: self.number, status: status.as_u16(), headers }));
    }

    /// Bytes of the answer's body.
    pub fn got(&self, bytes: &[u8]) {
        let mut state = self.state();
        state.got += bytes.len() as u64;
        if state.got > self.recorder.limits.body_bytes {
            let most = self.recorder.limits.body_bytes;
            state.outcome = Some(Outcome::Failed);
            state.reason.get_or_insert_with(|| format!("its answer has more than {most} bytes"));
            return;
        }
        self.pieces(bytes, Line::Got);
    }

    pub fn trailers(&self, trailers: &HeaderMap) {
        self.state().trailers = redact::headers(trailers);
    }

    /// Why there is no answer, or only a part of one.
    pub fn failed(&self, reason: &str) {
        self.state().reason.get_or_insert_with(|| reason.to_owned());
    }

    fn pieces(&self, bytes: &[u8], line: fn(Piece) -> Line) {
        for piece in bytes.chunks(PIECE_MAX) {
            self.recorder.write(&line(Piece { exchange: self.number, content: Content::of(piece) }));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let outcome = if state.is_answered { state.outcome.unwrap_or(Outcome::Cut) } else { Outcome::Failed };
        let hash = std::mem::take(&mut state.hash).finalize();
        let end = End {
            exchange: self.number,
            sha256: hex(&hash),
            sent_whole: state.sent_whole,
            outcome,
            reason: state.reason.take(),
            trailers: std::mem::take(&mut state.trailers),
        };
        self.recorder.write(&Line::End(end));
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Path and query, without what is secret and without what is another in every run.
pub(super) fn target_of(uri: &Uri, secrets: &Secrets) -> String {
    let target = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    redact::target(&secrets.without_placeholders(target))
}
