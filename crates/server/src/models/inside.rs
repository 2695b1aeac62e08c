//! Models for programs in sandboxes: the same routes, on connections that the egress process hands over, and nothing else.
//!
//! The connection says which sandbox calls; its token proves that the program was given it. What a sandbox can make this process hold
//! is bounded: connections, and bodies of requests that are being answered.

use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::header::AUTHORIZATION;
use saggar_domain::SandboxId;
use saggar_gateway::{Caller, Failure, FailureKind};
use saggar_http::attend;
use saggar_http::context::Peer;
use saggar_http::listen::{Bounds, Caller as Origin};

use super::failed;
use super::room::Whose;
use crate::server::Shared;

/// Connections of all sandboxes, and of one.
pub(crate) const BOUNDS: Bounds = Bounds { all: 4096, per_address: 256 };
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
    let is_empty = axum::body::HttpBody::is_end_stream(request.body());
    let held = match server.model_room.take(&Whose::Sandbox(sandbox), request.headers(), is_empty).await {
        Ok(held) => held,
        Err(failure) => return failed::answer(super::list::wire(&request), &failure),
    };
    held.until_sent(next.run(request).await)
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
