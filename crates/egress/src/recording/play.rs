//! The body of a recorded answer. Its pieces come in the order and in the sizes in which they were recorded, without the delays.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::body::{Bytes, Frame};
use tokio::time::Sleep;

use super::line::Outcome;
use super::read::Library;
use super::redact::REMOVED;

pub(crate) struct Played {
    library: Arc<Library>,
    exchange: usize,
    next: usize,
    has_ended: bool,
    grace: Option<Pin<Box<Sleep>>>,
}

/// Before an answer is cut again: what came before it has to reach the program, and a connection that is cut drops what it
/// hasn't sent.
const GRACE: Duration = Duration::from_millis(200);

impl Played {
    pub fn new(library: Arc<Library>, exchange: usize) -> Self {
        let mut played = Self { library, exchange, next: 0, has_ended: false, grace: None };
        played.has_ended = played.pieces() == 0 && played.outcome() == Outcome::Whole && played.trailers().is_empty();
        played
    }

    /// The next piece; `None` after the last one. An answer that was cut fails where it was cut.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let is_at_end = self.next == self.pieces();
        if is_at_end && !self.has_ended && self.outcome() != Outcome::Whole {
            let grace = self.grace.get_or_insert_with(|| Box::pin(tokio::time::sleep(GRACE)));
            ready!(grace.as_mut().poll(cx));
        }
        Poll::Ready(self.frame())
    }

    fn frame(&mut self) -> Option<io::Result<Frame<Bytes>>> {
        if self.has_ended {
            return None;
        }
        if let Some(place) = self.library.exchanges[self.exchange].pieces.get(self.next) {
            self.next += 1;
            let piece = self.library.piece(*place).map(|bytes| Frame::data(Bytes::from(bytes)));
            let is_last = self.next == self.pieces() && self.outcome() == Outcome::Whole && self.trailers().is_empty();
            self.has_ended = piece.is_err() || is_last;
            return Some(piece);
        }
        self.has_ended = true;
        if self.outcome() == Outcome::Whole {
            let trailers = self.trailers();
            return (!trailers.is_empty()).then(|| Ok(Frame::trailers(trailers)));
        }
        Some(Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the recorded answer was cut here")))
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn pieces(&self) -> usize {
        self.library.exchanges[self.exchange].pieces.len()
    }

    fn outcome(&self) -> Outcome {
        self.library.exchanges[self.exchange].end.as_ref().map_or(Outcome::Cut, |end| end.outcome)
    }

    fn trailers(&self) -> HeaderMap {
        let end = self.library.exchanges[self.exchange].end.as_ref();
        end.map(|end| header_map(&end.trailers)).unwrap_or_default()
    }
}

/// Headers of a recording, which a person may have edited: what isn't one is left out.
pub(crate) fn header_map(headers: &[(String, String)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers.iter().filter(|(_, value)| value != REMOVED) {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value.as_bytes()))
        {
            map.append(name, value);
        }
    }
    map
}
