//! What handlers take from a request: bodies and queries, read within bounds, and ids, without which there is nothing to find.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;
use http_body_util::BodyExt;
use saggar_api::Code;
use saggar_domain::{ExecId, SandboxId};
use serde::de::value::Error as ValueError;
use serde::de::{DeserializeOwned, IntoDeserializer};

use crate::refusal::Refusal;

/// Largest JSON body.
pub const JSON_MAX: usize = 1 << 20;
/// How long a body may take to bring its next piece.
pub const BODY_PATIENCE: Duration = Duration::from_secs(30);
/// How long a JSON body may take in all: a piece every 29 seconds would otherwise last for days.
const JSON_PATIENCE: Duration = Duration::from_secs(60);

/// A JSON body. An empty one is an empty object.
pub struct Json<T>(pub T);

impl<S: Sync, T: DeserializeOwned> FromRequest<S> for Json<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Refusal> {
        Ok(Self(JsonText::of(request).await?.read()?))
    }
}

/// The text of a JSON body, for who needs it as it was sent.
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
                "the body is not said to be JSON",
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

/// The query of the address.
pub struct Query<T>(pub T);

impl<S: Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        Ok(Self(saggar_api::read::query(parts.uri.query().unwrap_or_default())?))
    }
}

/// The body as it comes, piece by piece, each within a bounded time.
pub struct Pieces {
    body: Body,
    length: Option<u64>,
}

impl Pieces {
    /// The pieces of this body.
    pub fn of(headers: &HeaderMap, body: Body) -> Self {
        let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Self { body, length }
    }

    /// How much will come, if that was said.
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

/// All of a body that may not be larger than `most`.
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
            // Trailers say nothing to us.
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Ok(Some(Err(_))) => {
                return Err(Refusal::invalid("the body broke off", "send the whole body"));
            }
        }
    }
}

pub fn too_large(most: u64) -> Refusal {
    Refusal::new(Code::TooLarge, format!("the body is larger than {most} bytes"), "send less at once")
}

fn too_slow() -> Refusal {
    Refusal::new(Code::Timeout, "the body did not come in time", "send it faster, or in smaller requests")
}

/// A parameter of the path. What isn't an id names nothing.
pub async fn path_text(parts: &mut Parts, name: &str) -> Option<String> {
    let parameters = RawPathParams::from_request_parts(parts, &()).await.ok()?;
    parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
}

/// The sandbox that the path names.
pub async fn path_sandbox(parts: &mut Parts) -> Result<SandboxId, Refusal> {
    let text = match path_text(parts, "id").await {
        Some(text) => text,
        // As E2B's clients have it.
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
