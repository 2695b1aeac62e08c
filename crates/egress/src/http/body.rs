//! Bodies that are counted and paid for while they pass, frame by frame.

use std::future::Future as _;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::HeaderMap;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use saggar_domain::net::Refusal;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};

use crate::http::headers;
use crate::http::upstream::Lease;
use crate::limits::HELD_TIME;
use crate::record::Record;
use crate::recording::{Exchange, Played};
use crate::refuse::Page;
use crate::secret::{Patterns, Scrubber};

type BodyError = Box<dyn std::error::Error + Send + Sync>;

pub(crate) enum Body {
    /// A page of ours, a body that was read before, or nothing.
    Own {
        bytes: Option<Bytes>,
        /// Ends with the bytes.
        _room: Option<OwnedSemaphorePermit>,
    },
    Up(Passing),
    Down(Passing),
    Scrubbed(Box<Scrubbed>),
    /// From a recording.
    Played(Played, Arc<Record>),
    /// The same as another, and written to a recording.
    Taped(Box<Taped>),
}

pub(crate) struct Passing {
    inner: Incoming,
    record: Arc<Record>,
    /// Ends with the body: then the server's connection can be used again.
    _lease: Option<Lease>,
}

/// An answer from which values of secrets are removed.
pub(crate) struct Scrubbed {
    passing: Passing,
    patterns: Arc<Patterns>,
    scrubber: Scrubber,
    /// Runs while bytes are held back that may be released.
    patience: Option<Pin<Box<Sleep>>>,
    trailers: Option<HeaderMap>,
}

impl Body {
    pub fn empty() -> Self {
        Self::Own { bytes: None, _room: None }
    }

    pub fn own(bytes: Bytes) -> Self {
        Self::read(bytes, None)
    }

    /// A body that was read whole, and paid for.
    pub fn read(bytes: Bytes, room: Option<OwnedSemaphorePermit>) -> Self {
        Self::Own { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()), _room: room }
    }

    /// From the program to a server.
    pub fn up(inner: Incoming, record: Arc<Record>) -> Self {
        Self::Up(Passing { inner, record, _lease: None })
    }

    /// From a server to the program, without the values of secrets, if there are any.
    pub fn down(inner: Incoming, record: Arc<Record>, lease: Option<Lease>, scrub: Option<&Arc<Patterns>>) -> Self {
        let passing = Passing { inner, record, _lease: lease };
        match scrub {
            None => Self::Down(passing),
            Some(patterns) => Self::Scrubbed(Box::new(Scrubbed {
                passing,
                patterns: Arc::clone(patterns),
                scrubber: Scrubber::new(Arc::clone(patterns)),
                patience: None,
                trailers: None,
            })),
        }
    }
}

pub(crate) struct Taped {
    inner: Body,
    tape: Arc<Exchange>,
    is_up: bool,
}

impl Taped {
    pub fn new(inner: Body, tape: Arc<Exchange>, is_up: bool) -> Self {
        let taped = Self { inner, tape, is_up };
        taped.note_end();
        taped
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                match (frame.data_ref(), frame.trailers_ref()) {
                    (Some(data), _) if self.is_up => self.tape.sent(data),
                    (Some(data), _) => self.tape.got(data),
                    (None, Some(trailers)) if !self.is_up => self.tape.trailers(trailers),
                    (None, _) => {}
                }
                self.note_end();
            }
            Some(Err(error)) => self.tape.failed(&error.to_string()),
            None => self.tape.is_whole(self.is_up),
        }
        Poll::Ready(frame)
    }

    /// A body of known length isn't asked again after its last byte.
    fn note_end(&self) {
        if self.inner.is_end_stream() {
            self.tape.is_whole(self.is_up);
        }
    }
}

fn play(played: &mut Played, record: &Record, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
    let frame = match ready!(played.poll_frame(cx)) {
        Some(Ok(frame)) => frame,
        Some(Err(error)) => {
            record.fail(error.to_string());
            return Poll::Ready(Some(Err(error.into())));
        }
        None => return Poll::Ready(None),
    };
    let taken = record.take_down(frame.data_ref().map_or(0, Bytes::len));
    Poll::Ready(Some(taken.map(|()| frame).map_err(Into::into)))
}

impl Passing {
    fn poll(&mut self, cx: &mut Context<'_>, is_up: bool) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = match ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                self.fail(&error, is_up);
                return Poll::Ready(Some(Err(error.into())));
            }
            None => return Poll::Ready(None),
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let taken = if is_up { self.record.take_up(bytes) } else { self.record.take_down(bytes) };
        Poll::Ready(Some(taken.map(|()| frame).map_err(|spent| {
            if is_up {
                self.record.break_off(Page::too_many(spent.0.clone()));
            }
            spent.into()
        })))
    }
}

impl Scrubbed {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if let Some(trailers) = self.trailers.take() {
                return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
            }
            let bytes = match self.passing.poll(cx, false) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.patience = None;
                    match frame.into_data() {
                        Ok(chunk) => {
                            let certain = self.scrubber.push(chunk);
                            // The last chunk needs no second one for its end.
                            match self.passing.inner.is_end_stream() && self.scrubber.held() > 0 {
                                true => [certain, self.scrubber.finish()].concat().into(),
                                false => certain,
                            }
                        }
                        Err(frame) => {
                            let mut trailers = frame.into_trailers().unwrap_or_default();
                            headers::scrub(&mut trailers, &self.patterns);
                            self.trailers = Some(trailers);
                            self.scrubber.finish()
                        }
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                Poll::Ready(None) if self.scrubber.held() == 0 => return Poll::Ready(None),
                Poll::Ready(None) => self.scrubber.finish(),
                // If the length is known, the program waits for all of it anyway.
                Poll::Pending if self.scrubber.held() > 0 && self.passing.inner.size_hint().exact().is_none() => {
                    let patience = self.patience.get_or_insert_with(|| Box::pin(sleep(HELD_TIME)));
                    ready!(patience.as_mut().poll(cx));
                    self.patience = None;
                    self.scrubber.release()
                }
                Poll::Pending => return Poll::Pending,
            };
            if !bytes.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
        }
    }

    fn is_over(&self) -> bool {
        self.trailers.is_none() && self.scrubber.held() == 0 && self.passing.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let held = self.scrubber.held() as u64;
        let inner = self.passing.inner.size_hint();
        let mut hint = SizeHint::new();
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + held);
        }
        hint.set_lower(inner.lower() + held);
        hint
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
        match self.get_mut() {
            Self::Own { bytes, .. } => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Up(passing) => passing.poll(cx, true),
            Self::Down(passing) => passing.poll(cx, false),
            Self::Scrubbed(scrubbed) => scrubbed.poll(cx),
            Self::Played(played, record) => play(played, record, cx),
            Self::Taped(taped) => taped.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own { bytes, .. } => bytes.is_none(),
            Self::Up(passing) | Self::Down(passing) => passing.inner.is_end_stream(),
            Self::Scrubbed(scrubbed) => scrubbed.is_over(),
            Self::Played(played, _) => played.has_ended(),
            Self::Taped(taped) => taped.inner.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own { bytes, .. } => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Up(passing) | Self::Down(passing) => passing.inner.size_hint(),
            Self::Scrubbed(scrubbed) => scrubbed.size_hint(),
            Self::Played(played, _) if played.has_ended() => SizeHint::with_exact(0),
            Self::Played(..) => SizeHint::default(),
            Self::Taped(taped) => taped.inner.size_hint(),
        }
    }
}
