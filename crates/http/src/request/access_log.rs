//! One line in the log for each request, written when its answer has been sent or broken off.
//!
//! It names the route and not the path or the query: those hold file names, signatures and tokens. Health checks are logged at `debug`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::extract::{MatchedPath, Request};
use axum::response::Response;
use http::{Method, StatusCode};
use http_body::{Frame, SizeHint};
use saggar_api::route;

use crate::request::context::Context;

/// What a request is called that is for what is in a sandbox: its path is not ours.
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

    /// Writes the line when the answer has been sent. Until then the request counts as under way.
    pub(crate) fn end_with(self, response: Response, context: Arc<Context>) -> Response {
        let finish = Finish { line: self, status: response.status(), context };
        response.map(|body| Body::new(Finishing { body, _finish: finish }))
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

/// The body of an answer.
struct Finishing {
    body: Body,
    _finish: Finish,
}

impl http_body::Body for Finishing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
