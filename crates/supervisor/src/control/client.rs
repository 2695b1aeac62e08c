//! A blocking client of the control protocol, for tests, tools, and callers with a thread of their own.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recvmsg, send, socket_with, sockopt,
};
use saggar_domain::OutputStream;

use super::codec::{Decoder, Frame, encode_json, encode_stdin};
use super::{CONTROL, Op, Reply, Request};

/// One connection to a sandbox's supervisor.
#[derive(Debug)]
pub struct Client {
    fd: OwnedFd,
    decoder: Decoder,
    descriptors: Vec<OwnedFd>,
}

#[derive(Debug)]
pub enum Received {
    Reply(Reply),
    /// Bytes a program wrote.
    Output {
        stream: OutputStream,
        /// Number of bytes of that stream before these.
        offset: u64,
        bytes: Vec<u8>,
    },
    /// The connection has ended.
    End,
}

impl Client {
    /// Connects to a control socket. The directory is opened first, because a socket address only has room for a short
    /// path.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let (directory, name) = (socket.parent().ok_or_else(invalid)?, socket.file_name().ok_or_else(invalid)?);
        let directory = open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let address = format!(
            "/proc/self/fd/{}/{}",
            std::os::fd::AsRawFd::as_raw_fd(&directory),
            name.to_str().ok_or_else(invalid)?
        );
        let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        connect(&fd, &SocketAddrUnix::new(address.as_str())?)?;
        Ok(Self::over(fd))
    }

    /// Uses an existing connection.
    pub fn over(fd: OwnedFd) -> Self {
        Self { fd, decoder: Decoder::new(), descriptors: Vec::new() }
    }

    /// Sets the time-out of every later wait for the other side.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, Some(patience))?;
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Send, Some(patience)).map_err(Into::into)
    }

    pub fn ask(&mut self, op: Op) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode_json(&mut bytes, &Request { v: CONTROL, op }).map_err(io::Error::other)?;
        self.send(&bytes)
    }

    pub fn request(&mut self, op: Op) -> io::Result<Reply> {
        self.ask(op)?;
        match self.receive()? {
            Received::Reply(reply) => Ok(reply),
            Received::Output { .. } => Err(io::Error::new(io::ErrorKind::InvalidData, "output instead of a reply")),
            Received::End => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Sends bytes to a program's stdin.
    pub fn feed(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut frame = Vec::new();
        encode_stdin(&mut frame, bytes).map_err(io::Error::other)?;
        self.send(&frame)
    }

    /// Sends raw bytes.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let sent = rustix::io::retry_on_intr(|| send(&self.fd, rest, SendFlags::NOSIGNAL))?;
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// Waits for the next message.
    pub fn receive(&mut self) -> io::Result<Received> {
        loop {
            match self.decoder.next_frame().map_err(io::Error::other)? {
                Some(Frame::Json(json)) => return Ok(Received::Reply(serde_json::from_slice(&json)?)),
                Some(Frame::Output { stream, offset, bytes }) => {
                    return Ok(Received::Output { stream, offset, bytes });
                }
                Some(Frame::Stdin(_)) => return Err(io::ErrorKind::InvalidData.into()),
                None => {}
            }
            if self.read()? == 0 {
                return Ok(Received::End);
            }
        }
    }

    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.descriptors.pop()
    }

    fn read(&mut self) -> io::Result<usize> {
        let mut bytes = [0u8; 16 * 1024];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(&self.fd, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
        });
        let length = match received {
            Ok(received) => received.bytes,
            // A reset is an end with unread data on the other side.
            Err(rustix::io::Errno::CONNRESET) => 0,
            Err(errno) => return Err(errno.into()),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.decoder.push(&bytes[..length]);
        Ok(length)
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
