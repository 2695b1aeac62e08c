//! The part of the Connect protocol with JSON that E2B's clients use: unary calls, server streams, client streams. No
//! compression.
//!
//! An envelope is a byte of flags, a length in four bytes, most significant first, and a message. The last one of a
//! server stream has flag 2.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::stream;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use saggar_domain::User;
use saggar_http::extract;
use saggar_runtime::Permit;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::failure::{CallFailure, Code};
use crate::state::Shared;

/// Maximum size of a message: each connection may have one in memory.
const MESSAGE_MAX: usize = 4 << 20;
/// Length of an envelope's header.
const HEADER_LEN: usize = 5;
const COMPRESSED: u8 = 1;
const END: u8 = 2;
/// Time limit of a call's message.
const MESSAGE_PATIENCE: Duration = Duration::from_secs(60);
/// Maximum silence of a client stream: a user may be thinking at a terminal.
const STREAM_PATIENCE: Duration = Duration::from_secs(3600);
/// Interval of keep-alive messages on a silent stream, unless the client sets another.
const KEEP_ALIVE: Duration = Duration::from_secs(90);

/// Reads the message of a unary call.
pub(super) async fn unary<T: DeserializeOwned>(parts: &Parts, body: Body) -> Result<T, CallFailure> {
    check_kind(parts, "application/json")?;
    if let Some(encoding) = parts.headers.get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        return Err(CallFailure::new(Code::Unimplemented, "compressed messages are not supported"));
    }
    let body = in_time(async { Ok(extract::whole(body, MESSAGE_MAX).await?) }).await?;
    read(&body)
}

/// Reads the single message that requests a stream.
pub(super) async fn asked<T: DeserializeOwned>(parts: &Parts, body: Body) -> Result<T, CallFailure> {
    let mut envelopes = Envelopes::over(parts, body)?;
    match in_time(envelopes.next()).await? {
        Some(message) => read(&message),
        None => Err(CallFailure::invalid("the request has no message")),
    }
}

/// Applies the time limit: otherwise a message could arrive in small pieces for days.
pub(super) async fn in_time<T>(message: impl Future<Output = Result<T, CallFailure>>) -> Result<T, CallFailure> {
    let late = |_| CallFailure::new(Code::DeadlineExceeded, "the message did not arrive in time");
    tokio::time::timeout(MESSAGE_PATIENCE, message).await.map_err(late)?
}

pub(super) fn read<T: DeserializeOwned>(message: &[u8]) -> Result<T, CallFailure> {
    saggar_api::read::object(message).map_err(|why| CallFailure::invalid(format!("the message is malformed: {why}")))
}

fn check_kind(parts: &Parts, wanted: &str) -> Result<(), CallFailure> {
    let kind = parts.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    Err(CallFailure::new(Code::UnsupportedMediaType, format!("the content type must be {wanted}")))
}

/// Messages of a client stream.
pub(super) struct Envelopes {
    body: Body,
    buffer: BytesMut,
}

impl Envelopes {
    pub(super) fn over(parts: &Parts, body: Body) -> Result<Self, CallFailure> {
        check_kind(parts, "application/connect+json")?;
        Ok(Self { body, buffer: BytesMut::new() })
    }

    /// The next message; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, CallFailure> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(Some(message));
            }
            match tokio::time::timeout(STREAM_PATIENCE, self.body.frame()).await {
                Err(_) => return Err(CallFailure::new(Code::DeadlineExceeded, "the stream was silent for too long")),
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Ok(Some(Err(_))) => return Err(CallFailure::invalid("the stream was interrupted")),
                Ok(None) if self.buffer.is_empty() => return Ok(None),
                Ok(None) => return Err(CallFailure::invalid("the stream ended within a message")),
            }
        }
    }

    /// The next message, decoded.
    pub(super) async fn read<T: DeserializeOwned>(&mut self) -> Result<Option<T>, CallFailure> {
        self.next().await?.map(|message| read(&message)).transpose()
    }

    fn take(&mut self) -> Result<Option<Bytes>, CallFailure> {
        if self.buffer.len() < HEADER_LEN {
            return Ok(None);
        }
        let flags = self.buffer[0];
        let length = u32::from_be_bytes([self.buffer[1], self.buffer[2], self.buffer[3], self.buffer[4]]) as usize;
        if flags & COMPRESSED != 0 {
            return Err(CallFailure::new(Code::Unimplemented, "compressed messages are not supported"));
        }
        if flags != 0 {
            return Err(CallFailure::invalid("an envelope has unknown flags"));
        }
        if length > MESSAGE_MAX {
            return Err(CallFailure::new(Code::TooLarge, format!("a message is larger than {MESSAGE_MAX} bytes")));
        }
        if self.buffer.len() < HEADER_LEN + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER_LEN);
        Ok(Some(self.buffer.split_to(length).freeze()))
    }
}

/// A message of a stream, in its envelope.
pub(super) fn envelope(message: &serde_json::Value) -> Bytes {
    wrapped(0, &serde_json::to_vec(message).unwrap_or_default())
}

/// The last envelope of a stream: success, or the error.
pub(super) fn end(error: Option<(Code, &str)>) -> Bytes {
    let message = match error {
        None => json!({}),
        Some((code, message)) => json!({ "error": { "code": code.as_str(), "message": message } }),
    };
    wrapped(END, &serde_json::to_vec(&message).unwrap_or_default())
}

fn wrapped(flags: u8, message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HEADER_LEN + message.len());
    out.put_u8(flags);
    // Messages are bounded far below four bytes' range.
    out.put_u32(message.len() as u32);
    out.extend_from_slice(message);
    out.freeze()
}

/// The response to a client stream: one message, and the end.
pub(super) fn single(message: &serde_json::Value) -> Response {
    of_stream(Body::from([envelope(message), end(None)].concat()))
}

/// A stream that contains only an error.
pub(super) fn failed(failure: &CallFailure) -> Response {
    match failure {
        CallFailure::Gone { .. } | CallFailure::PortClosed { .. } => failure.plain(),
        // Errors of the transport itself come before there is a stream.
        CallFailure::Said { code: Code::UnsupportedMediaType | Code::Unauthenticated, .. } => failure.unary(),
        CallFailure::Said { .. } => of_stream(Body::from(failure.end())),
    }
}

/// A source of messages, each in its envelope.
pub(super) trait Source: Send + 'static {
    /// The keep-alive message.
    const KEEP_ALIVE: &'static str;

    /// The next ones; `None` after the end. May be cancelled at any await and called again.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
}

/// The response that streams messages. It ends with its source, or with the server.
pub(super) fn answer<S: Source>(server: Shared, headers: &HeaderMap, source: S) -> Response {
    let patience = keep_alive(headers);
    let pieces = stream::unfold((server, Some(source)), move |(server, source)| async move {
        let mut source = source?;
        let (piece, source) = tokio::select! {
            piece = source.next() => (piece?, Some(source)),
            () = tokio::time::sleep(patience) => (wrapped(0, S::KEEP_ALIVE.as_bytes()), Some(source)),
            () = server.stops() => (end(Some((Code::Unavailable, "the server is stopping"))), None),
        };
        Some((Ok::<_, Infallible>(piece), (server, source)))
    });
    of_stream(Body::from_stream(pieces))
}

fn of_stream(body: Body) -> Response {
    let mut response = body.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/connect+json"));
    response
}

fn keep_alive(headers: &HeaderMap) -> Duration {
    let seconds = number(headers, "keepalive-ping-interval").filter(|seconds| (1..=3600).contains(seconds));
    seconds.map_or(KEEP_ALIVE, Duration::from_secs)
}

/// Time limit of a call.
pub(super) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, CallFailure> {
    const NAME: &str = "connect-timeout-ms";
    match (headers.contains_key(NAME), number(headers, NAME)) {
        (false, _) => Ok(None),
        // Ten digits, as the protocol says.
        (true, Some(millis)) if millis < 10_000_000_000 => Ok(Some(Duration::from_millis(millis))),
        (true, _) => Err(CallFailure::invalid("Connect-Timeout-Ms is not a number of at most ten digits")),
    }
}

fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    let text = headers.get(name)?.to_str().ok()?;
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Who a call acts as.
#[derive(Clone, Debug)]
pub(super) struct Actor {
    pub(super) user: User,
    /// Where relative paths begin.
    pub(super) home: String,
}

impl Actor {
    /// By a name, or the sandbox's default user.
    pub(super) fn of(server: &Shared, permit: &Permit, name: Option<&str>) -> Result<Self, CallFailure> {
        let sandboxes = &server.sandboxes;
        let user = match name {
            None => sandboxes.default_user(permit),
            Some(name) => sandboxes.named_user(permit, name).ok_or_else(|| {
                let shown: String = name.chars().take(64).collect();
                CallFailure::new(Code::Unauthenticated, format!("invalid username: '{shown}'"))
            })?,
        };
        Ok(Self { user, home: sandboxes.home_of(permit, user) })
    }
}

/// The name of the user that a call acts as: `Authorization: Basic` with a name and no password. `None` means the sandbox's
/// default.
pub(super) fn user_name(headers: &HeaderMap) -> Result<Option<String>, CallFailure> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let Some((scheme, encoded)) = text.split_once(' ') else { return Ok(None) };
    if !scheme.eq_ignore_ascii_case("basic") {
        return Ok(None);
    }
    let decoded = STANDARD.decode(encoded.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let Some(decoded) = decoded else {
        return Err(CallFailure::new(Code::Unauthenticated, "the Authorization header is malformed"));
    };
    Ok(Some(decoded.split(':').next().unwrap_or_default().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(bytes: &[u8]) -> Result<Vec<Bytes>, CallFailure> {
        let pieces: Vec<_> = bytes.chunks(3).map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece))).collect();
        let mut envelopes = Envelopes { body: Body::from_stream(stream::iter(pieces)), buffer: BytesMut::new() };
        let mut messages = Vec::new();
        while let Some(message) = envelopes.next().await? {
            messages.push(message);
        }
        Ok(messages)
    }

    #[tokio::test]
    async fn messages_come_out_however_they_are_cut() {
        let wire = [envelope(&json!({"a": 1})), wrapped(0, b""), envelope(&json!([2]))].concat();
        assert_eq!(all(&wire).await.unwrap(), ["{\"a\":1}", "", "[2]"]);
        assert!(all(b"").await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn what_is_no_envelope_is_refused() {
        for (wire, code) in [
            (&wrapped(0, b"abc")[..6], Code::InvalidArgument),
            (b"\x00\x00", Code::InvalidArgument),
            (b"\x01\x00\x00\x00\x00", Code::Unimplemented),
            (b"\x80\x00\x00\x00\x00", Code::InvalidArgument),
            (b"\x00\xff\xff\xff\xff", Code::TooLarge),
        ] {
            match all(wire).await {
                Err(CallFailure::Said { code: said, .. }) => assert_eq!(said, code, "{wire:?}"),
                other => panic!("{wire:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_name_without_a_password_is_a_user() {
        let with = |value: &'static str| HeaderMap::from_iter([(AUTHORIZATION, HeaderValue::from_static(value))]);
        assert_eq!(user_name(&HeaderMap::new()).unwrap(), None);
        assert_eq!(user_name(&with("Basic cm9vdDo=")).unwrap().as_deref(), Some("root"));
        assert_eq!(user_name(&with("basic dXNlcjo=")).unwrap().as_deref(), Some("user"));
        assert_eq!(user_name(&with("Bearer sgr_x")).unwrap(), None);
        let malformed = user_name(&with("Basic !"));
        assert!(matches!(malformed, Err(CallFailure::Said { code: Code::Unauthenticated, .. })));
    }

    #[test]
    fn a_time_is_digits() {
        let with = |value: &'static str| {
            HeaderMap::from_iter([("connect-timeout-ms".parse().unwrap(), HeaderValue::from_static(value))])
        };
        assert_eq!(timeout(&HeaderMap::new()).unwrap(), None);
        assert_eq!(timeout(&with("1500")).unwrap(), Some(Duration::from_millis(1500)));
        for wrong in ["-1", "1.5", "", "99999999999"] {
            assert!(timeout(&with(wrong)).is_err(), "{wrong}");
        }
    }
}
