//! Models for programs in sandboxes: the same routes, on connections that the egress process hands over, and nothing else.
//!
//! The connection says which sandbox calls; its token proves that the program was given it. What a sandbox can make this process hold
//! is bounded: connections, and bodies of requests that are being answered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CONTENT_LENGTH};
use http_body_util::BodyExt as _;
use saggar_domain::SandboxId;
use saggar_gateway::{Caller, Failure, FailureKind};
use saggar_http::attend;
use saggar_http::context::Peer;
use saggar_http::listen::{Bounds, Caller as Origin};
use tokio::sync::Semaphore;

use super::{BODY_BYTES_MAX, failed};
use crate::server::Shared;

/// Connections of all sandboxes, and of one.
pub(crate) const BOUNDS: Bounds = Bounds { all: 4096, per_address: 256 };
/// Bytes of one sandbox's requests that are being answered: one of the largest, or many ordinary ones.
const BODIES_MAX: usize = BODY_BYTES_MAX;
/// Semaphores count to a third of what a `u32` does on some machines; so bodies are counted in blocks.
const BLOCK: usize = 1024;

/// Room for the bodies of sandboxes that are calling.
#[derive(Debug, Default)]
pub(crate) struct Room(Mutex<HashMap<SandboxId, Weak<Semaphore>>>);

impl Room {
    fn of(&self, sandbox: &SandboxId) -> Arc<Semaphore> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(room) = all.get(sandbox).and_then(Weak::upgrade) {
            return room;
        }
        all.retain(|_, room| room.strong_count() > 0);
        let room = Arc::new(Semaphore::new(BODIES_MAX / BLOCK));
        all.insert(sandbox.clone(), Arc::downgrade(&room));
        room
    }
}

/// The routes that a sandbox reaches.
pub(crate) fn router(server: Shared) -> Router {
    super::router()
        .fallback(nothing_there)
        .method_not_allowed_fallback(nothing_there)
        .layer(from_fn_with_state(server.clone(), around))
        .with_state(server)
}

async fn around(State(server): State<Shared>, request: Request, next: Next) -> Response {
    let gate = server.gate.clone();
    attend::attend(&gate, request, |request| in_room(server, request, next)).await
}

/// Waits for room for the request's body, which it has until it is answered completely.
async fn in_room(server: Shared, request: Request, next: Next) -> Response {
    let Some(sandbox) = sandbox(&request) else { return nothing_there(request).await };
    let length = match request.headers().get(CONTENT_LENGTH) {
        Some(length) => length.to_str().ok().and_then(|length| length.parse().ok()).unwrap_or(BODIES_MAX),
        None if axum::body::HttpBody::is_end_stream(request.body()) => 0,
        None => BODIES_MAX,
    };
    let blocks = u32::try_from(length.min(BODIES_MAX).div_ceil(BLOCK)).unwrap_or(u32::MAX);
    let room = server.model_room.of(&sandbox);
    let Ok(held) = room.acquire_many_owned(blocks).await else { return nothing_there(request).await };
    let response = next.run(request).await;
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            // It is given back with the body.
            let _ = &held;
            frame
        }))
    })
}

/// Which sandbox a request is from; `None` for everyone else.
fn sandbox(request: &Request) -> Option<SandboxId> {
    match &request.extensions().get::<Peer>()?.caller {
        Origin::Sandbox(id) => Some(id.clone()),
        Origin::Network(_) | Origin::Local(_) => None,
    }
}

/// The caller of a sandbox's request.
pub(super) async fn caller(server: &Shared, id: &SandboxId, headers: &HeaderMap) -> Result<Caller, Failure> {
    let unknown = || {
        let message = "this is not the token of the sandbox; use the one in its OPENAI_API_KEY or ANTHROPIC_API_KEY";
        Failure::new(FailureKind::Unauthorized, message)
    };
    let token = token(headers).ok_or_else(unknown)?;
    let found = server.sandboxes.model_caller(id, token).await.map_err(|fault| failed::of(&fault.into()))?;
    found.ok_or_else(unknown)
}

/// As clients of both providers send it.
fn token(headers: &HeaderMap) -> Option<&str> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.split_once(' '));
    let bearer = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
    bearer.or_else(|| headers.get("x-api-key")?.to_str().ok())
}

async fn nothing_there(request: Request) -> Response {
    let message = format!("{} does not exist: a sandbox reaches models and nothing else", request.uri().path());
    failed::answer(super::list::wire(&request), &Failure::new(FailureKind::NotFound, message)).into_response()
}

/// How long requests may take when the server stops.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_each_client_sends_it() {
        let headers = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(http::HeaderName::from_static(name), http::HeaderValue::from_static(value))])
        };
        for (name, value, token_is) in [
            ("authorization", "Bearer sgm_a", Some("sgm_a")),
            ("authorization", "bearer sgm_a", Some("sgm_a")),
            ("authorization", "Basic sgm_a", None),
            ("x-api-key", "sgm_a", Some("sgm_a")),
            ("cookie", "sgm_a", None),
        ] {
            assert_eq!(token(&headers(name, value)), token_is, "{name}: {value}");
        }
    }
}
