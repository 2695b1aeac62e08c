//! Bodies: sent from memory or from a reader of any length, and received piece by piece.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::io::{AsyncRead, ReadBuf};

use super::error::Error;

/// Size of one read from a reader, in bytes.
const PIECE_BYTES: usize = 256 << 10;

/// The body of a request.
pub(crate) enum Body {
    /// All of it, in memory.
    Whole(Option<Bytes>),
    /// Read while it is sent.
    Streamed(Streamed),
}

/// A body that is read while it is sent.
pub(crate) struct Streamed {
    reader: Pin<Box<dyn AsyncRead + Send>>,
    buffer: BytesMut,
    /// Remaining length, if known.
    left: Option<u64>,
}

impl Body {
    pub(crate) fn empty() -> Self {
        Self::Whole(None)
    }

    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::Whole(Some(bytes.into()))
    }

    /// A reader's bytes. If a length is given, any other length is an error.
    pub(crate) fn streamed(reader: impl AsyncRead + Send + 'static, length: Option<u64>) -> Self {
        Self::Streamed(Streamed { reader: Box::pin(reader), buffer: BytesMut::new(), left: length })
    }

    /// The same body again; `None` if it was consumed.
    pub(crate) fn again(&self) -> Option<Self> {
        match self {
            Self::Whole(bytes) => Some(Self::Whole(bytes.clone())),
            Self::Streamed(_) => None,
        }
    }
}

impl Streamed {
    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let most = self.left.map_or(PIECE_BYTES, |left| PIECE_BYTES.min(usize::try_from(left).unwrap_or(PIECE_BYTES)));
        if most == 0 {
            return Poll::Ready(None);
        }
        self.buffer.resize(most, 0);
        let mut space = ReadBuf::new(&mut self.buffer);
        if let Err(error) = ready!(self.reader.as_mut().poll_read(context, &mut space)) {
            return Poll::Ready(Some(Err(error)));
        }
        let count = space.filled().len();
        match (count, &mut self.left) {
            (0, None) => Poll::Ready(None),
            (0, Some(_)) => Poll::Ready(Some(Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "it became shorter while it was sent",
            )))),
            (count, left) => {
                if let Some(left) = left {
                    *left -= count as u64;
                }
                Poll::Ready(Some(Ok(Frame::data(self.buffer.split_to(count).freeze()))))
            }
        }
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Streamed(streamed) => streamed.poll_piece(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_none(),
            Self::Streamed(streamed) => streamed.left == Some(0),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Streamed(Streamed { left: Some(left), .. }) => SizeHint::with_exact(*left),
            Self::Streamed(Streamed { left: None, .. }) => SizeHint::default(),
        }
    }
}

/// A response body, received piece by piece.
#[derive(Debug)]
pub struct Download {
    body: Incoming,
    length: Option<u64>,
}

impl Download {
    pub(crate) fn new(body: Incoming) -> Self {
        let length = http_body::Body::size_hint(&body).exact();
        Self { body, length }
    }

    /// The total length, if the server sent it.
    pub fn length(&self) -> Option<u64> {
        self.length
    }

    /// The next piece; `None` at the end. A truncated body is an error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        while let Some(frame) = self.body.frame().await {
            let frame = frame.map_err(|error| Error::broken("receiving", error))?;
            if let Ok(data) = frame.into_data()
                && !data.is_empty()
            {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }

    /// The whole body; an error if it is longer than `most`.
    pub async fn collect(mut self, most: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        while let Some(piece) = self.next().await? {
            if all.len() + piece.len() > most {
                return Err(Error::Answer(format!("more than {most} bytes")));
            }
            all.extend_from_slice(&piece);
        }
        Ok(all)
    }
}
