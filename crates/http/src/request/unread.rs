//! Bodies that were not read to their end: after an answer that came before, an HTTP/1 connection can't be used again.
//!
//! A client that isn't told so may send its next request into a connection that is being closed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Version};
use http_body::{Frame, SizeHint};

/// Whether a request's body was read to its end.
pub(crate) struct Unread {
    is_over: Arc<AtomicBool>,
    version: Version,
}

impl Unread {
    /// Looks on while a request's body is read.
    pub(crate) fn watch(request: Request) -> (Self, Request) {
        let is_over = Arc::new(AtomicBool::new(http_body::Body::is_end_stream(request.body())));
        let unread = Self { is_over: Arc::clone(&is_over), version: request.version() };
        if is_over.load(Ordering::Relaxed) {
            return (unread, request);
        }
        (unread, request.map(|body| Body::new(Watched { body, is_over })))
    }

    /// Has the answer say that the connection ends with it, if it does.
    pub(crate) fn tell(&self, response: &mut Response) {
        let is_refusal = response.status().is_client_error() || response.status().is_server_error();
        if self.version < Version::HTTP_2 && is_refusal && !self.is_over.load(Ordering::Relaxed) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
    }
}

struct Watched {
    body: Body,
    is_over: Arc<AtomicBool>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.is_over.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
