//! A stream with manners: it gives up on a peer that takes nothing, and it doesn't slam the door on one that is still talking.
//!
//! A reader that stalls must not hold its connection for ever. And where a request was refused before all of it was read, closing at once
//! would make the kernel throw away the answer together with what was not read; so the end is said, and the rest is heard out for a moment.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How long what a peer still sends is heard out after the end was said.
const LINGER: Duration = Duration::from_secs(2);
/// What is heard out at once.
const DISCARD_LEN: usize = 64 * 1024;

/// A stream whose writes may each wait only so long.
pub(crate) struct Patient<I> {
    stream: I,
    patience: Duration,
    /// Runs while a write waits.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Runs once the end was said.
    lingering: Option<Pin<Box<Sleep>>>,
}

impl<I> Patient<I> {
    pub(crate) fn new(stream: I, patience: Duration) -> Self {
        Self { stream, patience, stalled: None, lingering: None }
    }

    /// Takes the outcome of a write: done, it forgets how long it waited; waiting, it looks at the clock.
    fn judge<T>(&mut self, context: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stalled = None;
            return outcome;
        }
        let patience = self.patience;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + patience)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Patient<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<I: AsyncRead + Unpin> Patient<I> {
    /// Hears the peer out, until it ends, fails, or has had its time.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let lingering = self.lingering.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        if lingering.as_mut().poll(context).is_ready() {
            return Poll::Ready(());
        }
        let mut space = vec![0; DISCARD_LEN];
        loop {
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Ok(()) | Err(_) => return Poll::Ready(()),
            }
        }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Patient<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, outcome)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.stream).poll_flush(context);
        self.judge(context, outcome)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let outcome = Pin::new(&mut self.stream).poll_shutdown(context);
            ready!(self.judge(context, outcome))?;
        }
        self.poll_linger(context).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.judge(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_peer_that_takes_nothing_is_given_up() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let mut patient = Patient::new(ours, Duration::from_millis(20));
        patient.write_all(b"four").await.unwrap();
        let error = patient.write_all(b"more").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let mut read = [0; 4];
        theirs.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"four");
        patient.write_all(b"then").await.unwrap();
    }

    #[tokio::test]
    async fn a_peer_that_still_talks_is_heard_out() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let closing = tokio::spawn(async move { Patient::new(ours, Duration::from_secs(60)).shutdown().await });
        // Far more than fits between the two, so that somebody must have read it.
        theirs.write_all(&[0; 1000]).await.unwrap();
        drop(theirs);
        closing.await.unwrap().unwrap();
    }
}
