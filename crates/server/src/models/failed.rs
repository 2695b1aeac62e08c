//! Failures in the form of the client's own provider, with headers that its retries obey.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode};
use saggar_gateway::{ClientWire, Failure, FailureKind};
use saggar_http::Refusal;

/// Clients wait as long as they are told, and some for hours: beyond this they are told not to come back by themselves.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// What the kit has refused, such as a missing key.
pub(super) fn of(refusal: &Refusal) -> Failure {
    let problem = &refusal.0;
    let kind = match problem.status {
        401 => FailureKind::Unauthorized,
        403 => FailureKind::Forbidden,
        404 => FailureKind::NotFound,
        408 => FailureKind::Timeout,
        413 => FailureKind::TooLarge,
        429 => FailureKind::RateLimited,
        503 => FailureKind::Overloaded,
        400..=499 => FailureKind::InvalidRequest,
        _ => FailureKind::Internal,
    };
    let message = match problem.help.as_str() {
        "" => problem.detail.clone(),
        help => format!("{} ({help})", problem.detail),
    };
    let wait = problem.retry_after_seconds.map(|seconds| Duration::from_secs(seconds.into()));
    Failure::new(kind, message).after(wait)
}

pub(super) fn answer(wire: ClientWire, failure: &Failure) -> Response {
    let id = request_id();
    let status = StatusCode::from_u16(failure.kind.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, axum::Json(wire.error(failure, &id))).into_response();
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert("request-id", id);
    }
    let wait = failure.retry_after.filter(|wait| *wait <= WAIT_MAX);
    if let Some(wait) = wait {
        // Never zero: some clients then come back without any wait.
        let millis = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1);
        headers.insert("retry-after-ms", HeaderValue::from(millis));
        headers.insert("retry-after", HeaderValue::from(millis.div_ceil(1000)));
    }
    let should_retry = match failure.kind {
        // Money doesn't come back by itself.
        FailureKind::Budget => Some(false),
        FailureKind::RateLimited | FailureKind::Overloaded if failure.retry_after.is_some() => Some(wait.is_some()),
        FailureKind::RateLimited
        | FailureKind::Overloaded
        | FailureKind::InvalidRequest
        | FailureKind::Unauthorized
        | FailureKind::Forbidden
        | FailureKind::NotFound
        | FailureKind::TooLarge
        | FailureKind::Timeout
        | FailureKind::Upstream
        | FailureKind::Torn
        | FailureKind::Cancelled
        | FailureKind::Internal => None,
    };
    if let Some(should_retry) = should_retry {
        headers.insert("x-should-retry", HeaderValue::from_static(if should_retry { "true" } else { "false" }));
    }
    response
}

/// Names a failure for its reader.
fn request_id() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("req_{:x}{:x}", since.as_micros(), NEXT.fetch_add(1, Ordering::Relaxed))
}
