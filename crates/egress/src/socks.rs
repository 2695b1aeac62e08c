//! The server's side of SOCKS5 (RFC 1928), as far as a sandbox needs it: CONNECT without authentication.
//!
//! ```no_run
//! # async fn example(mut stream: tokio::net::TcpStream) -> Result<(), saggar_egress::socks::SocksError> {
//! use saggar_egress::socks::{self, Reply};
//! let destination = socks::accept(&mut stream, socks::DEADLINE).await?; // errors were answered already
//! // … decide, dial …
//! socks::reply(&mut stream, Reply::Succeeded).await?;
//! # let _ = destination; Ok(()) }
//! ```
//!
//! [`accept`] reads exactly the greeting and the request, so what the client sends after it is still in the stream.
//!
//! Deliberately missing: SOCKS4 and 4a, BIND, UDP ASSOCIATE, and passwords. A listener that only one sandbox can reach
//! needs none; clients whose URL has a user name offer "no authentication" as well. A client that insists on one of
//! these gets the protocol's own refusal.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use saggar_domain::net::{Destination, Host, HostError};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// For greeting and request together.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// The first byte of a SOCKS5 connection, by which a listener for several protocols knows it.
pub const VERSION_5: u8 = 5;
pub const VERSION_4: u8 = 4;

const NO_AUTHENTICATION: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;
const ATYP_V4: u8 = 1;
const ATYP_NAME: u8 = 3;
const ATYP_V6: u8 = 4;
/// "Request rejected or failed", for a client of SOCKS4.
const REPLY_4_REJECTED: [u8; 8] = [0, 91, 0, 0, 0, 0, 0, 0];

/// The answers of RFC 1928, section 6, that we give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    Succeeded = 0,
    GeneralFailure = 1,
    NotAllowed = 2,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    TimedOut = 6,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

#[derive(Debug, thiserror::Error)]
pub enum SocksError {
    #[error("SOCKS version {0} is not supported; use SOCKS5")]
    Version(u8),
    #[error("the client insists on authentication; use SOCKS5 without a user name")]
    Authentication,
    #[error("SOCKS command {0} is not supported; only CONNECT is")]
    Command(u8),
    #[error("SOCKS address type {0} is not supported")]
    AddressType(u8),
    #[error("malformed SOCKS request: {0}")]
    Malformed(&'static str),
    #[error("the host in the SOCKS request is not acceptable: {0}")]
    Host(HostError),
    #[error("no complete SOCKS request in time")]
    TooLate,
    #[error("talking SOCKS with the client")]
    Io(#[from] io::Error),
}

impl SocksError {
    /// The answer that tells the client, where the protocol has one at this point.
    fn answer(&self) -> Option<Vec<u8>> {
        match self {
            Self::Version(VERSION_4) => Some(REPLY_4_REJECTED.to_vec()),
            Self::Authentication => Some(vec![VERSION_5, NO_ACCEPTABLE_METHOD]),
            Self::Command(_) => Some(Reply::CommandNotSupported.encode().to_vec()),
            Self::AddressType(_) => Some(Reply::AddressTypeNotSupported.encode().to_vec()),
            Self::Malformed(_) => Some(Reply::GeneralFailure.encode().to_vec()),
            Self::Host(_) => Some(Reply::NotAllowed.encode().to_vec()),
            Self::Version(_) | Self::TooLate | Self::Io(_) => None,
        }
    }
}

impl Reply {
    /// The whole message. The bound address is left unspecified: it is ours, and no business of the sandbox.
    pub fn encode(self) -> [u8; 10] {
        [VERSION_5, self as u8, 0, ATYP_V4, 0, 0, 0, 0, 0, 0]
    }

    /// The code that fits an error of connecting.
    pub fn for_connect_error(kind: io::ErrorKind) -> Self {
        match kind {
            io::ErrorKind::ConnectionRefused => Self::ConnectionRefused,
            io::ErrorKind::HostUnreachable => Self::HostUnreachable,
            io::ErrorKind::NetworkUnreachable => Self::NetworkUnreachable,
            io::ErrorKind::TimedOut => Self::TimedOut,
            _ => Self::GeneralFailure,
        }
    }
}

/// Reads greeting and request, from the version byte on. On an error the client got its answer, if there is one: close.
///
/// A success is not answered yet: decide, dial, then call [`reply`]. Not cancellation-safe: close the connection then.
pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    within: Duration,
) -> Result<Destination, SocksError> {
    let until = tokio::time::Instant::now() + within;
    let error = match tokio::time::timeout_at(until, converse(stream)).await {
        Ok(Ok(destination)) => return Ok(destination),
        Ok(Err(error)) => error,
        Err(_elapsed) => SocksError::TooLate,
    };
    if let Some(answer) = error.answer() {
        // The client may be gone, or not reading; the error that led here says more.
        let _ = tokio::time::timeout_at(until, stream.write_all(&answer)).await;
    }
    Err(error)
}

pub async fn reply<S: AsyncWrite + Unpin>(stream: &mut S, reply: Reply) -> Result<(), SocksError> {
    Ok(stream.write_all(&reply.encode()).await?)
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) -> Result<Destination, SocksError> {
    let version = stream.read_u8().await?;
    if version != VERSION_5 {
        return Err(SocksError::Version(version));
    }
    let mut methods = [0; u8::MAX as usize];
    let count = usize::from(stream.read_u8().await?);
    stream.read_exact(&mut methods[..count]).await?;
    if !methods[..count].contains(&NO_AUTHENTICATION) {
        return Err(SocksError::Authentication);
    }
    stream.write_all(&[VERSION_5, NO_AUTHENTICATION]).await?;
    request(stream).await
}

async fn request<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Destination, SocksError> {
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [version, command, reserved, kind] = head;
    if version != VERSION_5 {
        return Err(SocksError::Malformed("the request's version is not 5"));
    }
    if command != CONNECT {
        return Err(SocksError::Command(command));
    }
    if reserved != 0 {
        return Err(SocksError::Malformed("the reserved byte is not zero"));
    }
    let host = match kind {
        ATYP_V4 => {
            let mut octets = [0; 4];
            stream.read_exact(&mut octets).await?;
            Ok(Host::V4(Ipv4Addr::from(octets)))
        }
        ATYP_V6 => {
            let mut octets = [0; 16];
            stream.read_exact(&mut octets).await?;
            Ok(Host::V6(Ipv6Addr::from(octets)))
        }
        ATYP_NAME => {
            let mut name = [0; u8::MAX as usize];
            let length = usize::from(stream.read_u8().await?);
            stream.read_exact(&mut name[..length]).await?;
            Host::parse(&name[..length])
        }
        other => return Err(SocksError::AddressType(other)),
    };
    // The port is read first, so that the answer comes after the whole request.
    let port = stream.read_u16().await?;
    let host = host.map_err(SocksError::Host)?;
    if port == 0 {
        return Err(SocksError::Malformed("port 0"));
    }
    Ok(Destination { host, port })
}
