//! A blocking client of the control protocol: for tests, for tools, and for whoever has a thread to spare.

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

/// One connection to the process that holds a sandbox.
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
        /// How many bytes of that stream came before.
        offset: u64,
        bytes: Vec<u8>,
    },
    /// The connection has ended.
    End,
}

impl Client {
    /// Connects to a control socket. The directory is opened first, because an address has room for a short path alone.
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

    /// Speaks over a connection that is there.
    pub fn over(fd: OwnedFd) -> Self {
        Self { fd, decoder: Decoder::new(), descriptors: Vec::new() }
    }

    /// From now on a wait for the other side ends after this long, with an error.
    pub fn set_patience(&self, patience: Duration) -> io::Result<()> {
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Recv, Some(patience))?;
        sockopt::set_socket_timeout(&self.fd, sockopt::Timeout::Send, Some(patience)).map_err(Into::into)
    }

    /// Sends a request.
    pub fn ask(&mut self, op: Op) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode_json(&mut bytes, &Request { v: CONTROL, op }).map_err(io::Error::other)?;
        self.send(&bytes)
    }

    /// Sends a request and waits for its reply.
    pub fn request(&mut self, op: Op) -> io::Result<Reply> {
        self.ask(op)?;
        match self.receive()? {
            Received::Reply(reply) => Ok(reply),
            Received::Output { .. } => Err(io::Error::new(io::ErrorKind::InvalidData, "output instead of a reply")),
            Received::End => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Sends bytes for a program to read.
    pub fn feed(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut frame = Vec::new();
        encode_stdin(&mut frame, bytes).map_err(io::Error::other)?;
        self.send(&frame)
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let sent = rustix::io::retry_on_intr(|| send(&self.fd, rest, SendFlags::NOSIGNAL))?;
            rest = &rest[sent..];
        }
        Ok(())
    }

    /// Waits for what comes next.
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

    /// The descriptor that came with a reply.
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
            // A reset is an end with something unread on the other side.
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
