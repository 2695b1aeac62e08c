//! A second reader of a client's HTTP/1.1 messages, for what the first one hides.
//!
//! If a request has both `Content-Length` and `Transfer-Encoding`, or one of them twice, hyper chooses and drops the other before we
//! see the request. That is safe here, since messages are written anew. It is still an attempt at something, so it is refused. This
//! reader follows the framing of the bytes that pass, and tells whether a head was ambiguous. It changes nothing, keeps
//! no more than the start of one line, and reads bodies only to find their end.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Enough for the names and values that matter.
const LINE_KEPT: usize = 64;

/// What a connection learns from its [`Framed`] stream.
#[derive(Debug, Default)]
pub(crate) struct Framing {
    is_ambiguous: AtomicBool,
    is_over: AtomicBool,
}

/// A stream whose incoming bytes are followed.
pub(crate) struct Framed<S> {
    inner: S,
    reader: Reader,
    framing: Arc<Framing>,
}

impl Framing {
    pub fn is_ambiguous(&self) -> bool {
        self.is_ambiguous.load(Ordering::Relaxed)
    }

    /// What follows is not HTTP any more.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

impl<S> Framed<S> {
    pub fn new(inner: S, framing: Arc<Framing>) -> Self {
        Self { inner, reader: Reader::default(), framing }
    }

    pub fn into_inner(self) -> S {
        self.inner
    }
}

#[derive(Default)]
struct Reader {
    at: At,
    line: Vec<u8>,
    head: Head,
}

#[derive(Default)]
enum At {
    #[default]
    Head,
    /// Bytes of a body, or of a chunk with the end of its line.
    Body(u64),
    Chunk(u64),
    ChunkSize,
    Trailers,
    /// Not understood; hyper will not understand it either.
    Lost,
}

#[derive(Default)]
struct Head {
    has_start: bool,
    length: Option<u64>,
    lengths: usize,
    encodings: usize,
}

impl Reader {
    /// Whether a head within these bytes was ambiguous.
    fn read(&mut self, mut bytes: &[u8]) -> bool {
        let mut is_ambiguous = false;
        while !bytes.is_empty() {
            match &mut self.at {
                At::Lost => break,
                At::Body(left) | At::Chunk(left) => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &bytes[taken..];
                    *left -= taken as u64;
                    if *left == 0 {
                        self.at = if matches!(self.at, At::Body(_)) { At::Head } else { At::ChunkSize };
                    }
                }
                At::Head | At::ChunkSize | At::Trailers => {
                    let end = bytes.iter().position(|byte| *byte == b'\n');
                    let part = &bytes[..end.unwrap_or(bytes.len())];
                    let room = LINE_KEPT.saturating_sub(self.line.len());
                    self.line.extend_from_slice(&part[..part.len().min(room)]);
                    let Some(end) = end else { break };
                    bytes = &bytes[end + 1..];
                    is_ambiguous |= self.line();
                    self.line.clear();
                }
            }
        }
        is_ambiguous
    }

    /// At the end of a line.
    fn line(&mut self) -> bool {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        match self.at {
            At::Head if line.is_empty() => {
                // Empty lines before a request are allowed.
                if !self.head.has_start {
                    return false;
                }
                let head = std::mem::take(&mut self.head);
                self.at = match (head.encodings, head.length) {
                    (0, None | Some(0)) => At::Head,
                    (0, Some(length)) => At::Body(length),
                    _ => At::ChunkSize,
                };
                return head.lengths + head.encodings > 1;
            }
            At::Head if !self.head.has_start => self.head.has_start = true,
            At::Head => {
                let name = line.split(|byte| *byte == b':').next().unwrap_or_default().trim_ascii();
                if name.eq_ignore_ascii_case(b"transfer-encoding") {
                    self.head.encodings += 1;
                } else if name.eq_ignore_ascii_case(b"content-length") {
                    self.head.lengths += 1;
                    let value = line.get(name.len() + 1..).unwrap_or_default().trim_ascii();
                    self.head.length = str::from_utf8(value).ok().and_then(|value| value.parse().ok());
                }
            }
            At::ChunkSize => {
                let digits = line.split(|byte| matches!(byte, b';' | b' ' | b'\t')).next().unwrap_or_default();
                let size = str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
                self.at = match size {
                    Some(0) => At::Trailers,
                    // The chunk and the end of its line.
                    Some(size) => size.checked_add(2).map_or(At::Lost, At::Chunk),
                    None => At::Lost,
                };
            }
            At::Trailers if line.is_empty() => self.at = At::Head,
            At::Trailers | At::Body(_) | At::Chunk(_) | At::Lost => {}
        }
        false
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Framed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        if !self.framing.is_over.load(Ordering::Relaxed) && self.reader.read(&buf.filled()[before..]) {
            self.framing.is_ambiguous.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Framed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In every way to cut the bytes in two.
    fn check(messages: &str, expected: bool) {
        for cut in 0..messages.len() {
            let mut reader = Reader::default();
            let (first, second) = messages.as_bytes().split_at(cut);
            let found = reader.read(first) | reader.read(second);
            assert_eq!(found, expected, "{messages:?} cut at {cut}");
        }
    }

    const BAD: &str = "POST / HTTP/1.1\r\ncontent-length: 1\r\nTransfer-Encoding: chunked\r\n\r\n";

    #[test]
    fn more_than_one_length_is_ambiguous() {
        check("GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", false);
        check("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", false);
        check("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", false);
        check(BAD, true);
        check("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nCONTENT-LENGTH : 1\r\n\r\n", true);
        check("POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", true);
        check("POST / HTTP/1.1\nContent-Length: 3\nTransfer-Encoding: chunked\n\n", true);
    }

    #[test]
    fn the_next_message_is_found_after_a_body_and_bodies_are_not_heads() {
        check(&format!("GET / HTTP/1.1\r\n\r\n\r\n{BAD}"), true);
        check(&format!("POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc{BAD}"), true);
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nX-Trailer: 1\r\n\r\n";
        check(&format!("{chunked}{BAD}"), true);
        check(&format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{BAD}", BAD.len()), false);
        check(
            &format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{BAD}\r\n0\r\n\r\n", BAD.len()),
            false,
        );
    }

    #[test]
    fn no_more_than_the_start_of_a_line_is_kept() {
        let mut reader = Reader::default();
        reader.read(&[b'x'; 100_000]);
        assert!(reader.line.capacity() <= 2 * LINE_KEPT);
    }
}
