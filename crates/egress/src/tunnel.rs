//! Tunnels: bytes that are copied unread, and counted.
//!
//! Each direction ends by itself: when one side says that it has sent everything, the other is told so, and may go on
//! sending. An error in either direction ends both.

use std::future::Future;
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::limits::COPY_BUFFER;
use crate::record::{Record, Spent};

/// Copies until both directions have ended, or one has failed; the record then has the reason. Cancelling cuts both.
pub(crate) async fn copy<C, S>(client: C, server: S, record: &Arc<Record>)
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (client_reads, client_writes) = tokio::io::split(client);
    let (server_reads, server_writes) = tokio::io::split(server);
    finish(
        record,
        direction(client_reads, server_writes, |bytes| record.take_up(bytes)),
        direction(server_reads, client_writes, |bytes| record.take_down(bytes)),
    )
    .await;
}

/// The same for two sockets, which can be read and written at once without a lock.
pub(crate) async fn copy_sockets(
    client: &mut tokio::net::TcpStream,
    server: &mut tokio::net::TcpStream,
    record: &Arc<Record>,
) {
    let (client_reads, client_writes) = client.split();
    let (server_reads, server_writes) = server.split();
    finish(
        record,
        direction(client_reads, server_writes, |bytes| record.take_up(bytes)),
        direction(server_reads, client_writes, |bytes| record.take_down(bytes)),
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
        Err(End::Io(error)) => record.fail(format!("the connection broke: {}", error.kind())),
    }
}

enum End {
    Spent,
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
