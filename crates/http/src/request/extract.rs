//! Extractors for handlers: bodies and queries within bounds, and ids from the path.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http_body_util::BodyExt;
use saggar_api::Code;
use saggar_domain::{ContextId, ExecId, HostUser, SandboxId};
use serde::de::value::Error as ValueError;
use serde::de::{DeserializeOwned, IntoDeserializer};

use super::context::Peer;
use crate::listen::Caller;
use crate::refusal::Refusal;

/// Maximum size of a JSON body.
pub const JSON_MAX: usize = 1 << 20;
/// Maximum time until the next piece of a body.
pub const BODY_PATIENCE: Duration = Duration::from_secs(30);
/// Time limit of a JSON body: otherwise a piece every 29 seconds would last for days.
const JSON_PATIENCE: Duration = Duration::from_secs(60);

/// A JSON body. An empty one counts as an empty object.
pub struct Json<T>(pub T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Refusal> {
        Ok(Self(JsonText::of(request).await?.read()?))
    }
}

/// The text of a JSON body, unparsed.
pub struct JsonText(pub Bytes);

impl JsonText {
    async fn of(request: Request) -> Result<Self, Refusal> {
        let is_json = request.headers().get(CONTENT_TYPE).map(|kind| {
            let kind = kind.as_bytes();
            let kind = kind.split(|byte| *byte == b';').next().unwrap_or(kind).trim_ascii();
            kind.eq_ignore_ascii_case(b"application/json")
        });
        let body = tokio::time::timeout(JSON_PATIENCE, whole(request.into_body(), JSON_MAX)).await;
        let body = body.map_err(|_| too_slow())??;
        if is_json == Some(false) || (is_json.is_none() && !body.is_empty()) {
            return Err(Refusal::new(
                Code::UnsupportedMediaType,
                "the content type is not JSON",
                "send `Content-Type: application/json`",
            ));
        }
        Ok(Self(body))
    }

    pub fn read<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        Ok(saggar_api::read::json(&self.0)?)
    }
}

impl<S: Sync> FromRequest<S> for JsonText {
    type Rejection = Refusal;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Refusal> {
        Self::of(request).await
    }
}

/// The query of the URL.
pub struct Query<T>(pub T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        Ok(Self(saggar_api::read::query(parts.uri.query().unwrap_or_default())?))
    }
}

/// The user of this host who sent the request through the server's Unix socket; `None` for everyone else.
pub struct LocalCaller(pub Option<HostUser>);

/// What proxies add: then the request is somebody else's than the user's who connected.
const FORWARDED: &[&str] = &["forwarded", "via", "x-forwarded-for", "x-real-ip"];

impl<S: Sync> FromRequestParts<S> for LocalCaller {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        let caller = parts.extensions.get::<Peer>().map(|peer| peer.caller.clone());
        let is_forwarded = FORWARDED.iter().any(|name| parts.headers.contains_key(*name));
        Ok(Self(match caller {
            Some(Caller::Local(user)) if !is_forwarded => Some(user),
            Some(Caller::Local(_) | Caller::Network(_) | Caller::Sandbox(_)) | None => None,
        }))
    }
}

/// The body, piece by piece, each within a time limit.
pub struct Pieces {
    body: Body,
    length: Option<u64>,
}

impl Pieces {
    pub fn of(headers: &HeaderMap, body: Body) -> Self {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Self { body, length }
    }

    /// The length, if announced.
    pub fn expected(&self) -> Option<u64> {
        self.length
    }

    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        next(&mut self.body).await
    }
}

impl<S: Sync> FromRequest<S> for Pieces {
    type Rejection = Refusal;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Refusal> {
        let (parts, body) = request.into_parts();
        Ok(Self::of(&parts.headers, body))
    }
}

/// How many bytes of a body may be held in memory if at most `most` of it are read: it says its length, or may be any.
pub fn length(body: &Body, most: usize) -> usize {
    let said = http_body::Body::size_hint(body).upper().and_then(|length| usize::try_from(length).ok());
    said.map_or(most, |length| length.min(most))
}

/// A whole body of at most `most` bytes.
pub async fn whole(mut body: Body, most: usize) -> Result<Bytes, Refusal> {
    let mut all = BytesMut::new();
    while let Some(piece) = next(&mut body).await? {
        if all.len() + piece.len() > most {
            return Err(too_large(most as u64));
        }
        if all.is_empty() && http_body::Body::is_end_stream(&body) {
            return Ok(piece);
        }
        all.extend_from_slice(&piece);
    }
    Ok(all.freeze())
}

async fn next(body: &mut Body) -> Result<Option<Bytes>, Refusal> {
    loop {
        match tokio::time::timeout(BODY_PATIENCE, body.frame()).await {
            Err(_) => return Err(too_slow()),
            Ok(None) => return Ok(None),
            // Trailers are ignored.
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Ok(Some(Err(_))) => {
                return Err(Refusal::invalid("the body was interrupted", "send the whole body"));
            }
        }
    }
}

pub fn too_large(most: u64) -> Refusal {
    Refusal::new(Code::TooLarge, format!("the body is larger than {most} bytes"), "send a smaller body")
}

fn too_slow() -> Refusal {
    Refusal::new(Code::Timeout, "the body did not arrive in time", "send it faster, or in smaller requests")
}

/// A parameter of the path. An invalid id names no object.
pub async fn path_text(parts: &mut Parts, name: &str) -> Option<String> {
    let parameters = RawPathParams::from_request_parts(parts, &()).await.ok()?;
    parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
}

/// The sandbox that the path names.
pub async fn path_sandbox(parts: &mut Parts) -> Result<SandboxId, Refusal> {
    let text = match path_text(parts, "id").await {
        Some(text) => text,
        // In the form of E2B's clients.
        None => format!("sbx_{}", path_text(parts, "short").await.unwrap_or_default()),
    };
    SandboxId::parse(&text).ok_or_else(|| Refusal::not_found("sandbox", &text))
}

/// The exec that the path names.
pub struct PathExec(pub ExecId);

impl<S: Sync> FromRequestParts<S> for PathExec {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        let text = path_text(parts, "exec").await.unwrap_or_default();
        ExecId::parse(&text).map(Self).ok_or_else(|| Refusal::not_found("exec", &text))
    }
}

/// The code context that the path names.
pub struct PathContext(pub ContextId);

impl<S: Sync> FromRequestParts<S> for PathContext {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        let text = path_text(parts, "context").await.unwrap_or_default();
        ContextId::parse(&text).map(Self).ok_or_else(|| Refusal::not_found("code context", &text))
    }
}

/// The id that the path names last. What isn't one names nothing.
pub struct PathId<T>(pub T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for PathId<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        let parameters = RawPathParams::from_request_parts(parts, &()).await.map_err(|_| Refusal::internal())?;
        let (name, text) = parameters.iter().last().ok_or_else(Refusal::internal)?;
        let id: Result<T, ValueError> = T::deserialize(text.into_deserializer());
        id.map(Self).map_err(|_| Refusal::not_found(name, text))
    }
}
