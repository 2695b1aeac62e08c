//! Messages over a socket of packets.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{RecvFlags, SendFlags};
use saggar_supervisor::egress::{DESCRIPTORS_MAX, FromEgress, ToEgress, receive_with};
use tokio::io::Interest;
use tokio::net::UnixStream;
use zeroize::Zeroizing;

/// The socket of a connection. The runtime has no type for sockets of packets, and needs none: only its readiness is waited for.
pub struct Control {
    socket: UnixStream,
}

/// One message, or the end.
pub(crate) enum Incoming {
    Message(ToEgress, Vec<OwnedFd>),
    End,
}

impl Control {
    /// The socket must not block.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: UnixStream::from_std(socket.into())? })
    }

    pub(crate) fn over(socket: UnixStream) -> Self {
        Self { socket }
    }

    /// May be cancelled at any time.
    pub(crate) async fn receive(&self) -> io::Result<Incoming> {
        let receive = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            Ok(receive_with(self.socket.as_fd(), RecvFlags::DONTWAIT, &mut space)?)
        };
        let (bytes, descriptors) = self.socket.async_io(Interest::READABLE, receive).await?;
        match bytes {
            Some(bytes) => {
                // It may have values of secrets.
                let bytes = Zeroizing::new(bytes);
                Ok(Incoming::Message(serde_json::from_slice(&bytes)?, descriptors))
            }
            None => Ok(Incoming::End),
        }
    }

    pub(crate) async fn send(&self, message: &FromEgress) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let send = || Ok(rustix::net::send(&self.socket, &bytes, flags)?);
        self.socket.async_io(Interest::WRITABLE, send).await.map(drop)
    }
}
