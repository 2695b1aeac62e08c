//! A body that keeps a value until it has been sent, or dropped with its connection.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

/// The same body; `kept` is dropped with it.
pub(crate) fn keeping<T: Send + Unpin + 'static>(body: Body, kept: T) -> Body {
    Body::new(Keeping { body, _kept: kept })
}

struct Keeping<T> {
    body: Body,
    _kept: T,
}

impl<T: Unpin> http_body::Body for Keeping<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
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
