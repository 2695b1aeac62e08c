//! A stream whose first bytes were read already: it yields them again, then continues with the stream itself.
//!
//! Whatever peeks at a connection (the first byte, a ClientHello) hands on a `Replay`, so the next reader sees every byte
//! once and in order. Writes go straight through.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

#[derive(Debug)]
pub struct Replay<S> {
    /// Dropped as soon as it was read, so that a long connection doesn't hold it.
    ahead: Vec<u8>,
    at: usize,
    inner: S,
}

impl<S> Replay<S> {
    pub fn new(ahead: Vec<u8>, inner: S) -> Self {
        Self { ahead, at: 0, inner }
    }

    /// What was peeked and not yet read again.
    pub fn ahead(&self) -> &[u8] {
        &self.ahead[self.at..]
    }

    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The bytes not yet read again, and the stream that continues them.
    pub fn into_parts(mut self) -> (Vec<u8>, S) {
        self.ahead.drain(..self.at);
        (self.ahead, self.inner)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Replay<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.at < self.ahead.len() {
            let count = buf.remaining().min(self.ahead.len() - self.at);
            buf.put_slice(&self.ahead[self.at..self.at + count]);
            self.at += count;
            if self.at == self.ahead.len() {
                self.ahead = Vec::new();
                self.at = 0;
            }
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Replay<S> {
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test]
    async fn peeked_bytes_come_first_and_once() {
        let (near, mut far) = duplex(64);
        far.write_all(b" world").await.unwrap();
        let mut stream = Replay::new(b"hello".to_vec(), near);

        let mut start = [0; 3];
        stream.read_exact(&mut start).await.unwrap();
        assert_eq!((&start, stream.ahead()), (b"hel", &b"lo"[..]));

        let mut rest = [0; 8];
        stream.read_exact(&mut rest).await.unwrap();
        assert_eq!((&rest, stream.ahead()), (b"lo world", &b""[..]));
    }

    #[tokio::test]
    async fn parts_hold_only_what_was_not_read() {
        let (near, _far) = duplex(64);
        let mut stream = Replay::new(b"abc".to_vec(), near);
        assert_eq!(stream.read_u8().await.unwrap(), b'a');
        assert_eq!(stream.into_parts().0, b"bc");
    }

    #[tokio::test]
    async fn writes_pass_through() {
        let (near, mut far) = duplex(64);
        let mut stream = Replay::new(b"unread".to_vec(), near);
        stream.write_all(b"up").await.unwrap();
        let mut got = [0; 2];
        far.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"up");
    }
}
