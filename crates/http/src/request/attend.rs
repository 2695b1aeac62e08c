//! Around every request: its id, the bounds that hold for all, what is logged of it, and problems as bodies.
//!
//! Nothing leaves here without a request id, and no error leaves as anything but `application/problem+json`, a panic included.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HOST, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, StatusCode};
use saggar_api::{Code, PROBLEM_MEDIA_TYPE, route};

use super::access_log::Line;
use super::context::{Context, Peer};
use super::unread::Unread;
use crate::gate::Gate;
use crate::refusal::Refusal;

/// Most bytes of headers, names and values together.
const HEADERS_MAX: usize = 64 * 1024;
/// How long what is no stream may take. Each thing that is waited for has a bound of its own; this one is for what was forgotten.
const ANSWER_PATIENCE: Duration = Duration::from_secs(120);

/// Attends to one request, which `answer` answers.
pub async fn attend<F>(gate: &Gate, request: Request, answer: impl FnOnce(Request) -> F) -> Response
where
    F: Future<Output = Response>,
{
    let id = request_id();
    let line = Line::begin(&id, &request);
    let peer = request.extensions().get::<Peer>().cloned();
    let context = Context::new(gate.under_way.clone(), peer);
    let (unread, mut request) = Unread::watch(request);
    let answering = async {
        name_host(&mut request);
        match check_headers(request.headers()) {
            Ok(()) => answer(request).await,
            Err(refusal) => refusal.into_response(),
        }
    };
    let answer = context.scope(AssertUnwindSafe(answering).catch_unwind()).await;
    let mut response = answer.unwrap_or_else(|_| {
        tracing::error!(request = id, "the request panicked; what, is in the line before");
        Refusal::internal().into_response()
    });
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        response = problem(refusal, &id, response.headers());
    }
    unread.tell(&mut response);
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(route::header::REQUEST_ID, value);
    }
    line.end_with(response, context)
}

fn check_headers(headers: &HeaderMap) -> Result<(), Refusal> {
    if size(headers) > HEADERS_MAX {
        let what = format!("the headers are larger than {HEADERS_MAX} bytes");
        return Err(Refusal::new(Code::HeadersTooLarge, what, "send less in headers"));
    }
    Ok(())
}

/// Has `Host` say what the client calls us: HTTP/2 says that elsewhere, and where both are said it is the other that counts.
fn name_host(request: &mut Request) {
    let authority =
        request.uri().authority().map(|authority| authority.as_str().rsplit('@').next().unwrap_or_default());
    if let Some(Ok(host)) = authority.map(HeaderValue::from_str) {
        request.headers_mut().insert(HOST, host);
    }
}

/// Ends what takes longer than anything should that is not a stream.
pub async fn within_bounds(request: Request, next: Next) -> Response {
    match tokio::time::timeout(ANSWER_PATIENCE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Refusal::new(
            Code::SandboxTimeout,
            "what was asked for took too long",
            "look whether it was done before asking again",
        )
        .into_response(),
    }
}

/// Nothing is there.
pub async fn nothing_there() -> Refusal {
    Refusal::new(Code::NotFound, "there is nothing at this address", "see /api/v1/openapi.json for what there is")
}

/// Something is there, and doesn't do that.
pub async fn no_such_method() -> Refusal {
    Refusal::new(Code::MethodNotAllowed, "this method does nothing here", "see the header Allow for those that do")
}

fn problem(refusal: Refusal, id: &str, headers: &HeaderMap) -> Response {
    let problem = refusal.0.of_request(id);
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    // What a refusal came with is kept: `Allow`, for one.
    for (name, value) in headers {
        if *name != http::header::CONTENT_LENGTH && *name != CONTENT_TYPE {
            response.headers_mut().insert(name, value.clone());
        }
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_MEDIA_TYPE));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(seconds) = problem.retry_after_seconds {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn size(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
}

/// Names a request in the log and in its answer. Nothing depends on its being hard to guess.
fn request_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    static FIRST: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
    let first = *FIRST.get_or_init(|| {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        since.as_micros() as u64
    });
    format!("req_{:x}", first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)))
}
