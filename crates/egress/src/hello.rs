//! The first message of a TLS client, read without answering it: which name it asks for, and what it offers.
//!
//! ```no_run
//! # async fn example(mut stream: tokio::net::TcpStream) -> Result<(), saggar_egress::hello::PeekError> {
//! use saggar_egress::{hello, replay::Replay};
//! let peeked = hello::peek(&mut stream, hello::DEADLINE).await?;
//! println!("{:?}", peeked.hello.name);
//! let stream = Replay::new(peeked.bytes, stream); // nothing is lost
//! # let _ = stream; Ok(()) }
//! ```
//!
//! A client may cut the message into any number of TLS records and TCP segments. It may not exceed [`HELLO_MAX`] bytes or
//! the deadline. Anything that two implementations could read differently is refused: a second name, a name of another
//! type, bytes after the end of any list, an extension that comes twice, a name that isn't in canonical form.
//!
//! This module decides nothing: whether a missing name, an address or ECH is acceptable is up to the caller. (Some clients
//! send a random ECH extension by default. Where we terminate TLS ourselves it has no effect; where bytes are copied
//! unread it may carry a second name.)

mod message;
mod records;

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use saggar_domain::net::HostName;
use tokio::io::{AsyncRead, AsyncReadExt as _};

pub use self::records::{HELLO_MAX, Progress, Records};

/// Long enough for a client on a busy machine; a connection that says nothing for so long is closed.
pub const DEADLINE: Duration = Duration::from_secs(10);

const READ_STEP: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientHello {
    pub name: ServerName,
    /// Protocols in the client's order, as sent: `h2`, `http/1.1`, or any other bytes. Empty if the client offered none.
    pub alpn: Vec<Vec<u8>>,
    /// Whether there is an encrypted ClientHello, or an extension of its drafts, inside.
    pub ech: bool,
}

/// The server name that a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerName {
    Name(HostName),
    /// RFC 6066 doesn't allow an address here, yet some clients send one.
    Address(IpAddr),
    Absent,
}

/// A ClientHello and all bytes that were read to see it. Feed them to [`crate::replay::Replay`].
#[derive(Debug)]
pub struct Peeked {
    pub hello: ClientHello,
    pub bytes: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum PeekError {
    /// The first byte isn't that of a TLS handshake. The bytes read so far are given back, for a protocol of another kind.
    #[error("not TLS")]
    NotTls { bytes: Vec<u8> },
    #[error("malformed ClientHello: {0}")]
    Malformed(#[from] HelloError),
    #[error("the connection ended within the ClientHello, after {read} bytes")]
    Ended { read: usize },
    #[error("no complete ClientHello in time; {read} bytes came")]
    TooLate { read: usize },
    #[error("reading the ClientHello")]
    Read(#[source] io::Error),
}

/// Why bytes are not an acceptable ClientHello.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    #[error("not a TLS handshake record")]
    NotTls,
    #[error("bad record header")]
    Record,
    #[error("larger than {HELLO_MAX} bytes")]
    TooLarge,
    #[error("the first message is not a ClientHello")]
    NotClientHello,
    #[error("a length doesn't fit")]
    Length,
    #[error("bytes after the ClientHello")]
    Trailing,
    #[error("an extension comes twice")]
    DuplicateExtension,
    #[error("the server name extension must hold exactly one host name")]
    ServerNameList,
    #[error("the server name is not a canonical host name")]
    ServerName,
    #[error("bad list of application protocols")]
    Alpn,
}

/// Reads from `reader` until a whole ClientHello was seen. Reads at most [`HELLO_MAX`] bytes, perhaps some that follow the
/// message; all are in [`Peeked::bytes`].
///
/// Cancelling loses the bytes read so far: close the connection then.
pub async fn peek<R: AsyncRead + Unpin>(reader: &mut R, within: Duration) -> Result<Peeked, PeekError> {
    let mut records = Records::default();
    match tokio::time::timeout(within, read(reader, &mut records)).await {
        Ok(Ok(hello)) => Ok(Peeked { hello, bytes: records.into_bytes() }),
        Ok(Err(PeekError::Malformed(HelloError::NotTls))) => Err(PeekError::NotTls { bytes: records.into_bytes() }),
        Ok(Err(error)) => Err(error),
        Err(_elapsed) => Err(PeekError::TooLate { read: records.bytes().len() }),
    }
}

async fn read<R: AsyncRead + Unpin>(reader: &mut R, records: &mut Records) -> Result<ClientHello, PeekError> {
    let mut buffer = [0; READ_STEP];
    loop {
        // Room for one byte more than the limit, so that the limit is seen to be exceeded.
        let room = (HELLO_MAX + 1 - records.bytes().len()).min(READ_STEP);
        let count = reader.read(&mut buffer[..room]).await.map_err(PeekError::Read)?;
        if count == 0 {
            return Err(PeekError::Ended { read: records.bytes().len() });
        }
        match records.push(&buffer[..count])? {
            Progress::Complete(hello) => return Ok(hello),
            Progress::Incomplete => {}
        }
    }
}
