//! Tunnels: bytes that are copied and counted, and unread, except that values of secrets are removed where there are any.
//!
//! Each direction ends by itself: when one side says that it has sent everything, the other is told so, and may go on
//! sending. An error in either direction ends both.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hyper::body::Bytes;
use rustix::net::Shutdown;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::limits::{COPY_BUFFER, HELD_TIME, PIPE_BYTES, SPLICE_FROM};
use crate::record::{Record, Spent};
use crate::secret::{Frames, Unreadable};

/// Copies until both directions have ended, or one has failed; the record then has the reason. Cancelling cuts both. With
/// `frames`, what the server sends is a WebSocket from which values of secrets are removed.
pub(crate) async fn copy<C, S>(client: C, server: S, record: &Arc<Record>, frames: Option<Frames>)
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (client_reads, client_writes) = tokio::io::split(client);
    let (server_reads, server_writes) = tokio::io::split(server);
    let down = async {
        let take = |bytes| record.take_down(bytes);
        match frames {
            None => direction(server_reads, client_writes, take).await,
            Some(frames) => scrubbed_direction(server_reads, client_writes, take, frames).await,
        }
    };
    finish(record, direction(client_reads, server_writes, |bytes| record.take_up(bytes)), down).await;
}

/// The same for two sockets. What is short is copied; a long stream goes from one to the other inside the kernel.
pub(crate) async fn copy_sockets(client: &TcpStream, server: &TcpStream, record: &Arc<Record>) {
    finish(
        record,
        between(client, server, |bytes| record.take_up(bytes)),
        between(server, client, |bytes| record.take_down(bytes)),
    )
    .await;
}

async fn finish(
    record: &Record,
    up: impl Future<Output = Result<(), End>>,
    down: impl Future<Output = Result<(), End>>,
) {
    match tokio::try_join!(up, down) {
        Ok(((), ())) => {}
        // The record has the reason already.
        Err(End::Spent) => {}
        Err(End::Unreadable(unreadable)) => record.fail(unreadable.to_string()),
        Err(End::Io(error)) => record.fail(format!("the connection broke: {}", error.kind())),
    }
}

enum End {
    Spent,
    Unreadable(Unreadable),
    Io(io::Error),
}

async fn direction(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    take: impl Fn(usize) -> Result<(), Spent>,
) -> Result<(), End> {
    let mut buffer = vec![0; COPY_BUFFER];
    loop {
        let count = from.read(&mut buffer).await.map_err(End::Io)?;
        if count == 0 {
            // The other side may have closed completely before; then there is nobody to tell.
            let _ = to.shutdown().await;
            return Ok(());
        }
        take(count).map_err(|Spent(_)| End::Spent)?;
        to.write_all(&buffer[..count]).await.map_err(End::Io)?;
        to.flush().await.map_err(End::Io)?;
    }
}

async fn between(from: &TcpStream, to: &TcpStream, take: impl Fn(usize) -> Result<(), Spent>) -> Result<(), End> {
    if copied(from, to, &take, SPLICE_FROM).await? == Copied::Part {
        match pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) {
            Ok(pipe) => spliced(from, to, &take, pipe).await?,
            // Too many descriptors are open.
            Err(_) => {
                copied(from, to, &take, usize::MAX).await?;
            }
        }
    }
    // The other side may have closed completely before; then there is nobody to tell.
    let _ = rustix::net::shutdown(to, Shutdown::Write);
    Ok(())
}

#[derive(PartialEq)]
enum Copied {
    /// The sender has sent everything.
    All,
    /// As much as was asked for, or a little more.
    Part,
}

async fn copied(
    from: &TcpStream,
    to: &TcpStream,
    take: &impl Fn(usize) -> Result<(), Spent>,
    bytes: usize,
) -> Result<Copied, End> {
    let mut buffer = vec![0; COPY_BUFFER];
    let mut total = 0;
    while total < bytes {
        let count = from.async_io(Interest::READABLE, || from.try_read(&mut buffer)).await.map_err(End::Io)?;
        if count == 0 {
            return Ok(Copied::All);
        }
        take(count).map_err(|Spent(_)| End::Spent)?;
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let written = to.async_io(Interest::WRITABLE, || to.try_write(rest)).await.map_err(End::Io)?;
            rest = &rest[written..];
        }
        total += count;
    }
    Ok(Copied::Part)
}

/// Moves the rest of a stream through a pipe. What is in the pipe is counted before it goes on.
async fn spliced(
    from: &TcpStream,
    to: &TcpStream,
    take: &impl Fn(usize) -> Result<(), Spent>,
    (outlet, inlet): (OwnedFd, OwnedFd),
) -> Result<(), End> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    loop {
        // The pipe is empty here, so only the socket can make this wait.
        let fill = || Ok(splice(from, None, &inlet, None, PIPE_BYTES, flags)?);
        let mut waiting = from.async_io(Interest::READABLE, fill).await.map_err(End::Io)?;
        if waiting == 0 {
            return Ok(());
        }
        take(waiting).map_err(|Spent(_)| End::Spent)?;
        while waiting > 0 {
            let empty = || Ok(splice(&outlet, None, to, None, waiting, flags)?);
            waiting -= to.async_io(Interest::WRITABLE, empty).await.map_err(End::Io)?;
        }
    }
}

async fn scrubbed_direction(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    take: impl Fn(usize) -> Result<(), Spent>,
    mut frames: Frames,
) -> Result<(), End> {
    let mut buffer = vec![0; COPY_BUFFER];
    loop {
        let read = from.read(&mut buffer);
        let read = match frames.held() > 0 {
            false => Some(read.await),
            // The server may be waiting for an answer to what is held back.
            true => timeout(HELD_TIME, read).await.ok(),
        };
        let count = read.transpose().map_err(End::Io)?;
        let bytes = match count {
            None => frames.release(),
            Some(0) => frames.finish(),
            Some(count) => {
                take(count).map_err(|Spent(_)| End::Spent)?;
                frames.push(Bytes::copy_from_slice(&buffer[..count])).map_err(End::Unreadable)?
            }
        };
        if !bytes.is_empty() {
            to.write_all(&bytes).await.map_err(End::Io)?;
            to.flush().await.map_err(End::Io)?;
        }
        if count == Some(0) {
            // The other side may have closed completely before; then there is nobody to tell.
            let _ = to.shutdown().await;
            return Ok(());
        }
    }
}
