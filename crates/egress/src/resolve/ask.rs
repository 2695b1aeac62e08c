//! One question to one name server: over UDP, and over TCP if the reply doesn't fit.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::resolve::message::{Family, Query, REPLY_MAX, Reply, ReplyError, UDP_MAX, WireName};

/// For a server to reply, over one of the two transports.
const REPLY_TIME: Duration = Duration::from_secs(2);
/// Replies that don't fit the question, after which the server is given up for this time. A forger needs far more.
const STRANGERS_MAX: usize = 16;

#[derive(Debug, thiserror::Error)]
pub(super) enum AskError {
    #[error("no reply in time")]
    TooLate,
    #[error("the reply can't be read: {0}")]
    Reply(#[from] ReplyError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Each question has a random id, and a socket of its own with a port that the kernel chooses at random.
pub(super) async fn ask(server: SocketAddr, name: WireName, family: Family) -> Result<Reply, AskError> {
    let query = Query { id: random_id()?, name, family };
    let reply = timeout(REPLY_TIME, over_udp(server, &query)).await.map_err(|_| AskError::TooLate)??;
    if !reply.truncated {
        return Ok(reply);
    }
    timeout(REPLY_TIME, over_tcp(server, &query)).await.map_err(|_| AskError::TooLate)?
}

fn random_id() -> io::Result<u16> {
    let mut bytes = [0; 2];
    let count = getrandom(&mut bytes, GetRandomFlags::empty())?;
    if count != bytes.len() {
        return Err(io::Error::other("the kernel gave no random number"));
    }
    Ok(u16::from_ne_bytes(bytes))
}

async fn over_udp(server: SocketAddr, query: &Query) -> Result<Reply, AskError> {
    let local = match server {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(local).await?;
    // Connected: the kernel drops what doesn't come from the server.
    socket.connect(server).await?;
    socket.send(&query.encode()).await?;
    let mut buffer = [0; UDP_MAX as usize];
    let mut last = ReplyError::Stranger;
    for _ in 0..STRANGERS_MAX {
        let count = socket.recv(&mut buffer).await?;
        match query.parse_reply(&buffer[..count]) {
            Ok(reply) => return Ok(reply),
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

async fn over_tcp(server: SocketAddr, query: &Query) -> Result<Reply, AskError> {
    let mut stream = TcpStream::connect(server).await?;
    let question = query.encode();
    let mut message = Vec::with_capacity(2 + question.len());
    message.extend((question.len() as u16).to_be_bytes());
    message.extend(question);
    stream.write_all(&message).await?;
    let count = usize::from(stream.read_u16().await?);
    if count > REPLY_MAX {
        return Err(ReplyError::Malformed.into());
    }
    let mut reply = vec![0; count];
    stream.read_exact(&mut reply).await?;
    let reply = query.parse_reply(&reply)?;
    // Nothing larger is left to ask for.
    if reply.truncated { Err(ReplyError::Malformed.into()) } else { Ok(reply) }
}
