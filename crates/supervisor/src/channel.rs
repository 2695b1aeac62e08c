//! The host's end of the control channel: frames out through a queue, frames in through a bounded decoder.

use std::collections::VecDeque;
use std::io;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv,
    send, sendmsg, socketpair,
};
use saggar_guest::{Decoder, FrameError, FromGuest, JOINS_MAX, ToGuest};

/// Bytes read from the channel at once.
pub(crate) const READ_LEN: usize = 16 * 1024;

/// The host's end of the connection to a guest.
#[derive(Debug)]
pub struct Channel {
    fd: OwnedFd,
    outgoing: VecDeque<u8>,
    /// Descriptors to send, in order, each with the number of bytes that go before the first byte of their frame.
    attached: VecDeque<Attached>,
    decoder: Decoder<FromGuest>,
    buffer: Vec<u8>,
}

/// The descriptors of one unsent frame.
#[derive(Debug)]
struct Attached {
    // INVARIANT: never more than `outgoing.len()`, and ascending along the queue.
    before: usize,
    descriptors: Vec<OwnedFd>,
}

/// The result of a read.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// Frames; may be empty.
    Frames(Vec<FromGuest>),
    /// The guest closed its end.
    End,
}

impl Channel {
    /// Returns a channel, and the end that the guest inherits. Descriptors only go in: the kernel drops any that the
    /// guest attaches, because no room is offered for them.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let channel = Self {
            fd: ours,
            outgoing: VecDeque::new(),
            attached: VecDeque::new(),
            decoder: Decoder::new(),
            buffer: vec![0; READ_LEN],
        };
        Ok((channel, theirs))
    }

    /// Queues a frame without descriptors and sends as much as possible now.
    pub fn send(&mut self, frame: &ToGuest) -> Result<(), FrameError> {
        self.send_with(frame, Vec::new())
    }

    /// Queues a frame with its descriptors and sends as much as possible now. The descriptors are closed here once they
    /// are sent.
    pub fn send_with(&mut self, frame: &ToGuest, descriptors: Vec<OwnedFd>) -> Result<(), FrameError> {
        if descriptors.len() != frame.descriptors() {
            return Err(FrameError::Invalid("descriptors"));
        }
        let mut bytes = Vec::new();
        frame.encode(&mut bytes)?;
        if !descriptors.is_empty() {
            self.attached.push_back(Attached { before: self.outgoing.len(), descriptors });
        }
        self.outgoing.extend(bytes);
        self.flush();
        Ok(())
    }

    /// Sends as much as possible now. A guest that is gone shows when reading, so errors are not reported here.
    pub(crate) fn flush(&mut self) {
        while !self.outgoing.is_empty() {
            match self.send_some() {
                Ok(sent) => {
                    self.outgoing.drain(..sent);
                    self.attached.iter_mut().for_each(|attached| attached.before -= sent);
                }
                Err(Errno::INTR) => {}
                // The second error means that too many descriptors are in flight: the guest has to receive some first.
                Err(Errno::AGAIN | Errno::TOOMANYREFS) => return,
                Err(_) => {
                    self.outgoing.clear();
                    self.attached.clear();
                    return;
                }
            }
        }
    }

    /// Sends once. Never goes past the first byte of a frame that has descriptors unless they go with it.
    fn send_some(&mut self) -> Result<usize, Errno> {
        let (front, _) = self.outgoing.as_slices();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let Some(next) = self.attached.front() else { return send(&self.fd, front, flags) };
        if next.before > 0 {
            return send(&self.fd, &front[..front.len().min(next.before)], flags);
        }
        // Stops before the next frame with descriptors: the kernel delivers one set of them to one read.
        let most = self.attached.get(1).map_or(front.len(), |after| front.len().min(after.before));
        let descriptors: Vec<BorrowedFd<'_>> = next.descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(JOINS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(Errno::NOBUFS);
        }
        let sent = sendmsg(&self.fd, &[IoSlice::new(&front[..most])], &mut control, flags)?;
        self.attached.pop_front();
        Ok(sent)
    }

    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Number of bytes that wait to be sent.
    pub(crate) fn outgoing_len(&self) -> usize {
        self.outgoing.len()
    }

    /// Reads once. Never blocks.
    pub(crate) fn receive(&mut self) -> Result<Incoming, FrameError> {
        let length = loop {
            match recv(&self.fd, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => break length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(Incoming::Frames(Vec::new())),
                // A reset is an end with unread data on the other side.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "the helpers of tests are tests, too")]

    use std::os::fd::AsRawFd;

    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
    use saggar_guest::{OpenRequest, OpenTarget};

    use super::*;

    /// More frames with descriptors than the socket accepts at once, so that some queue here.
    const FRAMES: u32 = 2000;

    fn open(stream: u32) -> ToGuest {
        // Large, so that the queue fills.
        let groups = vec![1; 200];
        ToGuest::Open(OpenRequest {
            stream,
            uid: 1,
            gid: 1,
            groups,
            keep_capabilities: false,
            target: OpenTarget::Files,
        })
    }

    /// A file whose content identifies its frame.
    fn marked(stream: u32) -> OwnedFd {
        let file = rustix::fs::memfd_create("mark", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, stream.into()).unwrap();
        file
    }

    #[test]
    fn descriptors_arrive_in_order_and_no_later_than_their_frame() {
        let (mut channel, theirs) = Channel::pair().unwrap();
        for stream in 0..FRAMES {
            channel.send(&ToGuest::StdinEnd { exec: stream }).unwrap();
            channel.send_with(&open(stream), vec![marked(stream)]).unwrap();
        }
        assert!(channel.has_outgoing(), "the test is about a queue that is not empty");
        let mut decoder = Decoder::<ToGuest>::new();
        let (mut waiting, mut next) = (VecDeque::<OwnedFd>::new(), 0);
        let mut buffer = vec![0; 5000];
        while next < FRAMES {
            channel.flush();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(JOINS_MAX))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let part = &mut [std::io::IoSliceMut::new(&mut buffer)];
            let received = recvmsg(&theirs, part, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    waiting.extend(descriptors);
                }
            }
            let mut input = &buffer[..received.bytes];
            while let Some(frame) = decoder.next_frame(&mut input).unwrap() {
                if let ToGuest::Open(request) = frame {
                    let descriptor = waiting.pop_front().expect("it has come with its frame");
                    let mark = rustix::fs::fstat(&descriptor).unwrap().st_size;
                    assert_eq!((request.stream, mark), (next, next.into()), "descriptor {}", descriptor.as_raw_fd());
                    next += 1;
                }
            }
        }
        assert!(waiting.is_empty() && !channel.has_outgoing());
    }

    #[test]
    fn a_frame_without_its_descriptors_is_not_sent() {
        let (mut channel, _theirs) = Channel::pair().unwrap();
        let refusal = Err(FrameError::Invalid("descriptors"));
        assert_eq!(channel.send(&open(1)), refusal);
        assert_eq!(channel.send_with(&ToGuest::StdinEnd { exec: 1 }, vec![marked(1)]), refusal);
        assert!(!channel.has_outgoing());
    }
}
