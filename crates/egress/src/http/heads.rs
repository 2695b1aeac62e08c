//! The heads that a server sends over HTTP/2, counted: a stream has one answer, perhaps trailers, and a few interim answers (1xx) before it.
//!
//! The library skips interim answers without telling us. So this follows the frames that pass, by their headers alone, and ends a connection
//! on which a stream has too many heads. It changes nothing, and keeps a number for each stream that is open.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http::interim::INTERIM_MAX;
use crate::limits::STREAMS_MAX;

/// Length, type, flags and stream of a frame.
const HEADER_LEN: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const END_STREAM: u8 = 0x1;
/// Interim answers, the answer, and its trailers.
const HEADS_MAX: usize = INTERIM_MAX + 2;
/// Streams that a number is kept for. The server can't open any, so more than ours are none.
const KNOWN_MAX: usize = STREAMS_MAX as usize * 2;

/// A stream to a server that speaks HTTP/2.
pub(crate) struct Heads<S> {
    inner: S,
    frames: Frames,
}

#[derive(Default)]
struct Frames {
    header: Vec<u8>,
    /// Bytes of the frame that are to come after its header.
    left: usize,
    heads: HashMap<u32, usize>,
}

impl<S> Heads<S> {
    pub fn new(inner: S) -> Self {
        Self { inner, frames: Frames::default() }
    }
}

impl Frames {
    /// `false` if there are too many heads.
    fn follow(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len());
                self.left -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let taken = (HEADER_LEN - self.header.len()).min(bytes.len());
            self.header.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if let [x, y, z, kind, flags, a, b, c, d] = self.header[..] {
                self.header.clear();
                self.left = u32::from_be_bytes([0, x, y, z]) as usize;
                // Its first bit means nothing.
                let stream = u32::from_be_bytes([a & 0x7f, b, c, d]);
                if !self.count(kind, flags, stream) {
                    return false;
                }
            }
        }
        true
    }

    fn count(&mut self, kind: u8, flags: u8, stream: u32) -> bool {
        if kind == HEADERS {
            let heads = self.heads.entry(stream).or_default();
            *heads += 1;
            if *heads > HEADS_MAX {
                return false;
            }
        }
        let is_over = kind == RST_STREAM || (matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0);
        if is_over {
            self.heads.remove(&stream);
        }
        self.heads.len() <= KNOWN_MAX
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heads<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let is_fine = self.frames.follow(&buffer.filled()[before..]);
        Poll::Ready(if is_fine { Ok(()) } else { Err(io::Error::other("too many interim answers")) })
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heads<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u8, length: usize) -> Vec<u8> {
        let mut frame = vec![0, (length >> 8) as u8, length as u8, kind, flags, 0x80, 0, 0, stream];
        // Looks like a header of a frame with headers.
        frame.extend(std::iter::repeat_n(HEADERS, length));
        frame
    }

    /// Whether all frames pass, in pieces of one byte and at once.
    fn check(frames: &[Vec<u8>], expected: bool) {
        let bytes = frames.concat();
        assert_eq!(Frames::default().follow(&bytes), expected);
        let mut frames = Frames::default();
        assert_eq!(bytes.iter().all(|byte| frames.follow(&[*byte])), expected);
    }

    #[test]
    fn a_stream_has_a_bounded_number_of_heads() {
        let heads = |count: usize, stream: u8| vec![frame(HEADERS, 4, stream, 5); count];
        check(&heads(HEADS_MAX, 1), true);
        check(&heads(HEADS_MAX + 1, 1), false);
        // Each stream for itself, and data between them don't count.
        check(&[heads(HEADS_MAX, 1), vec![frame(DATA, 0, 1, 700)], heads(HEADS_MAX, 3)].concat(), true);
        check(&[heads(HEADS_MAX, 1), vec![frame(DATA, 0, 1, 700)], heads(1, 1)].concat(), false);
    }

    #[test]
    fn streams_that_are_over_are_forgotten() {
        for over in [frame(DATA, END_STREAM, 1, 0), frame(HEADERS, END_STREAM | 4, 1, 3), frame(RST_STREAM, 0, 1, 4)] {
            let mut frames = Frames::default();
            for _ in 0..HEADS_MAX * 2 {
                assert!(frames.follow(&[frame(HEADERS, 4, 1, 9), over.clone()].concat()));
            }
            assert!(frames.heads.is_empty());
        }
    }
}
