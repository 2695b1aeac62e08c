//! Errors in the format of E2B's control plane: a number, a message, and a status that its clients have an exception
//! for.

use axum::Json;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{ALLOW, RETRY_AFTER};
use http::{HeaderValue, StatusCode};
use saggar_api::{Code, Problem};
use saggar_http::Refusal;
use serde_json::json;

/// Translates the refusals of the inner routes.
pub(super) async fn translate(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let Some(Refusal(problem)) = response.extensions_mut().remove::<Refusal>() else { return response };
    let allow = response.headers().get(ALLOW).cloned();
    let mut response = said(&problem);
    if let Some(allow) = allow {
        response.headers_mut().insert(ALLOW, allow);
    }
    response
}

fn said(problem: &Problem) -> Response {
    let status = status(problem);
    let message =
        if problem.help.is_empty() { problem.detail.clone() } else { format!("{}: {}", problem.detail, problem.help) };
    let mut response = (status, Json(json!({ "code": status.as_u16(), "message": message }))).into_response();
    if let Some(seconds) = problem.retry_after_seconds {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

pub(super) fn status(problem: &Problem) -> StatusCode {
    match problem.code {
        // In E2B's API an ended sandbox is not found.
        Code::SandboxEnded => StatusCode::NOT_FOUND,
        // Features that this version or this host lacks. Clients retry after 502, 503 and 504, but not after this.
        Code::UnsupportedCapability | Code::UnenforcedLimit => StatusCode::NOT_IMPLEMENTED,
        Code::UnsupportedMediaType => StatusCode::BAD_REQUEST,
        _ => StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// A feature that isn't implemented.
pub(super) fn unsupported(what: impl Into<String>, help: impl Into<String>) -> Refusal {
    Refusal::new(Code::UnsupportedCapability, what, help)
}
