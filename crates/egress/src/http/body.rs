//! Bodies that are counted and paid for while they pass, frame by frame.

use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use saggar_domain::net::Refusal;

use crate::http::upstream::Lease;
use crate::record::Record;
use crate::refuse::Page;

type BodyError = Box<dyn std::error::Error + Send + Sync>;

pub(crate) enum Body {
    /// A page of ours, or nothing.
    Own(Option<Bytes>),
    Up(Passing),
    Down(Passing),
}

pub(crate) struct Passing {
    inner: Incoming,
    record: Arc<Record>,
    /// Ends with the body: then the server's connection can be used again.
    _lease: Option<Lease>,
}

impl Body {
    pub fn empty() -> Self {
        Self::Own(None)
    }

    pub fn own(bytes: Bytes) -> Self {
        Self::Own(Some(bytes).filter(|bytes| !bytes.is_empty()))
    }

    /// From the program to a server.
    pub fn up(inner: Incoming, record: Arc<Record>) -> Self {
        Self::Up(Passing { inner, record, _lease: None })
    }

    /// From a server to the program.
    pub fn down(inner: Incoming, record: Arc<Record>, lease: Option<Lease>) -> Self {
        Self::Down(Passing { inner, record, _lease: lease })
    }
}

impl Passing {
    fn fail(&self, error: &hyper::Error, is_up: bool) {
        match (is_up, is_malformed(error)) {
            (true, true) => self.record.break_off(Page::ambiguous(Refusal::new(
                "egress/malformed-request",
                "the body of the request is not valid HTTP: a chunk is malformed",
                "check the program",
            ))),
            (true, false) => self.record.fail("the program ended its request early"),
            (false, _) => self.record.fail("the server ended its answer early; it is truncated"),
        }
    }
}

/// Whether a body can't be understood, as opposed to one that ends too early.
fn is_malformed(error: &hyper::Error) -> bool {
    use std::error::Error as _;
    let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    cause.is_some_and(|cause| matches!(cause.kind(), ErrorKind::InvalidInput | ErrorKind::InvalidData))
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let (passing, is_up) = match self.get_mut() {
            Self::Own(bytes) => return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Up(passing) => (passing, true),
            Self::Down(passing) => (passing, false),
        };
        let frame = match ready!(Pin::new(&mut passing.inner).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                passing.fail(&error, is_up);
                return Poll::Ready(Some(Err(error.into())));
            }
            None => return Poll::Ready(None),
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let taken = if is_up { passing.record.take_up(bytes) } else { passing.record.take_down(bytes) };
        Poll::Ready(Some(taken.map(|()| frame).map_err(|spent| {
            if is_up {
                passing.record.break_off(Page::too_many(spent.0.clone()));
            }
            spent.into()
        })))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Up(passing) | Self::Down(passing) => passing.inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Up(passing) | Self::Down(passing) => passing.inner.size_hint(),
        }
    }
}
