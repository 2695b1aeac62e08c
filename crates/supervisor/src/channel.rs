//! The host's end of the control channel: frames out through a queue, frames in through a bounded decoder.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use saggar_guest::{Decoder, FrameError, FromGuest, ToGuest};

/// Bytes read from the channel at once.
pub(crate) const READ_LEN: usize = 16 * 1024;

/// One end of the conversation with a guest.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
    outgoing: VecDeque<u8>,
    decoder: Decoder<FromGuest>,
    buffer: Vec<u8>,
}

/// What a read brought.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// Frames, perhaps none yet.
    Frames(Vec<FromGuest>),
    /// The guest closed its end.
    End,
}

impl Channel {
    /// A channel, and the end of it that the guest inherits. No descriptor ever crosses it: what the guest might attach is
    /// dropped by the kernel, because no room is offered for it.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let channel = Self { fd: ours, outgoing: VecDeque::new(), decoder: Decoder::new(), buffer: vec![0; READ_LEN] };
        Ok((channel, theirs))
    }

    /// Queues a frame and sends what fits now.
    pub fn send(&mut self, frame: &ToGuest) -> Result<(), FrameError> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes)?;
        self.outgoing.extend(bytes);
        self.flush();
        Ok(())
    }

    /// Sends what fits now. A guest that is gone shows when reading, so nothing is reported here.
    pub(crate) fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            let (front, _) = self.outgoing.as_slices();
            match send(&self.fd, front, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => {
                    self.outgoing.drain(..sent);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.outgoing.clear();
                    return;
                }
            }
        }
    }

    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Reads once. Never blocks.
    pub(crate) fn receive(&mut self) -> Result<Incoming, FrameError> {
        let length = loop {
            match recv(&self.fd, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => break length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Incoming::Frames(Vec::new())),
                // A reset is an end with something unread on the other side.
                Err(_) => return Ok(Incoming::End),
            }
        };
        if length == 0 {
            return Ok(Incoming::End);
        }
        let mut input = &self.buffer[..length];
        let mut frames = Vec::new();
        while let Some(frame) = self.decoder.next_frame(&mut input)? {
            frames.push(frame);
        }
        Ok(Incoming::Frames(frames))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
