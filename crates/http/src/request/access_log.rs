//! The access log: one line per request, written when its response has been sent or interrupted.
//!
//! It has the route and not the path or the query, which contain file names, signatures and tokens. Health checks are
//! logged at `debug`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use http::{Method, StatusCode};
use saggar_api::route;

use crate::keeping::keeping;
use crate::request::context::Context;

/// The route name of requests that are forwarded into a sandbox: their paths are not ours.
const INTO_SANDBOX: &str = "sandbox";

/// A line that is not written yet.
#[derive(Debug)]
pub(crate) struct Line {
    request: String,
    begin: Instant,
    method: Method,
    route: Option<MatchedPath>,
}

impl Line {
    pub(crate) fn begin(id: &str, request: &Request) -> Self {
        let route = request.extensions().get::<MatchedPath>().cloned();
        Self { request: id.to_owned(), begin: Instant::now(), method: request.method().clone(), route }
    }

    /// Writes the line when the response has been sent. Until then the request counts as in progress.
    pub(crate) fn end_with(self, response: Response, context: Arc<Context>) -> Response {
        let finish = Finish { line: self, status: response.status(), context };
        response.map(|body| keeping(body, finish))
    }
}

struct Finish {
    line: Line,
    status: StatusCode,
    context: Arc<Context>,
}

impl Drop for Finish {
    fn drop(&mut self) {
        let Self { line: Line { request, begin, method, route }, status, context } = self;
        let told = context.told();
        let route = if told.is_for_sandbox { INTO_SANDBOX } else { route.as_ref().map_or("-", MatchedPath::as_str) };
        let (status, elapsed_ms) = (status.as_u16(), u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX));
        let peer = told.peer.map(tracing::field::display);
        let (key, sandbox, run) = (text(told.key.as_ref()), text(told.sandbox.as_ref()), text(told.run.as_ref()));
        macro_rules! line {
            ($level:ident) => {
                tracing::$level!(request, %method, route, status, elapsed_ms, peer, key, sandbox, run, "request")
            };
        }
        match status {
            500.. => line!(warn),
            _ if route == route::HEALTH => line!(debug),
            _ => line!(info),
        }
    }
}

fn text(id: Option<&impl ToString>) -> Option<String> {
    id.map(ToString::to_string)
}
