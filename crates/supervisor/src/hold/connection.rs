//! One control connection: frames in through a bounded decoder, frames out through a bounded buffer, and what it is for.
//!
//! What it is for changes by itself only once: a request for a stream makes it that stream until it closes. Everything else is answered,
//! and the next request may follow.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg};
use saggar_domain::Problem;

use crate::control::{Decoder, Reply, encode_json};

use super::moment::Moment;
use super::ring::Cursor;

/// Bytes waiting for a slow reader before nothing more is put there.
const OUT_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Connection {
    fd: OwnedFd,
    pub(crate) decoder: Decoder,
    pub(crate) role: Role,
    /// When something last went in or out, or there was nothing to go out.
    pub(crate) moved: Moment,
    out: Vec<u8>,
    sent: usize,
    /// Whether the other side takes nothing any more, and is only heard out.
    is_deaf: bool,
    /// Whether the other side will say no more.
    pub(crate) is_over: bool,
}

/// What a connection is for.
#[derive(Debug)]
pub(crate) enum Role {
    /// A request is yet to come.
    Asking,
    /// It asked for an exec that hasn't started yet.
    Starting { exec: u32, follows: bool, feeds: bool },
    /// It gets an exec's output.
    Following(Following),
    /// It gets events after this one.
    Hearing { after: u64 },
    /// It waits until there is no process of an exec.
    Burying { exec: u32 },
    /// It waits for the sandbox's end.
    Dying,
    /// It has been told everything, and is closed when that is sent.
    Leaving,
}

/// Following an exec.
#[derive(Debug)]
pub(crate) struct Following {
    pub(crate) exec: u32,
    pub(crate) cursor: Cursor,
    /// Whether its stdin comes from here.
    pub(crate) feeds: bool,
    /// It took nothing for so long that nobody waits for it any more.
    pub(crate) is_lossy: bool,
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Something, or nothing yet.
    Some,
    /// The other side is gone for good.
    Broken,
}

impl Connection {
    pub(crate) fn new(fd: OwnedFd, now: Moment) -> Self {
        Self {
            fd,
            decoder: Decoder::new(),
            role: Role::Asking,
            moved: now,
            out: Vec::new(),
            sent: 0,
            is_deaf: false,
            is_over: false,
        }
    }

    pub(crate) fn is_deaf(&self) -> bool {
        self.is_deaf
    }

    /// The other side takes nothing any more. What it sent before may still be stdin that a program is to get: then the connection is
    /// kept, for that alone, until it is all taken. Says whether it is.
    pub(crate) fn is_heard_out(&mut self) -> bool {
        let Role::Following(following) = &mut self.role else { return false };
        // Nobody waits for it to read.
        following.is_lossy = true;
        (self.out, self.sent, self.is_deaf) = (Vec::new(), 0, true);
        following.feeds && !self.is_over
    }

    /// Queues a reply; it goes out with [`Connection::flush`].
    pub(crate) fn say(&mut self, reply: &Reply) {
        let queued = encode_json(&mut self.out, reply);
        if queued.is_err() {
            // Only a description could be this long, and those are bounded; whoever asked learns at least that.
            let problem = Problem::new(saggar_domain::Code::TooMany, "the answer is too long", "ask for less");
            encode_json(&mut self.out, &Reply::Error(problem)).expect("a short problem is short enough");
        }
    }

    /// What waits to be sent, for frames that aren't replies.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Whether more may be queued.
    pub(crate) fn has_room(&self) -> bool {
        self.out.len() - self.sent < OUT_MAX
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.sent < self.out.len()
    }

    /// Sends what fits now; an error means that nobody is there.
    pub(crate) fn flush(&mut self, now: Moment) -> Result<(), Errno> {
        while self.has_unsent() {
            match send(&self.fd, &self.out[self.sent..], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(sent) => {
                    self.sent += sent;
                    self.moved = now;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
        if self.sent > 0 {
            // Given back whole: an idle connection costs next to nothing.
            (self.out, self.sent) = (Vec::new(), 0);
        }
        Ok(())
    }

    /// Sends a reply with a descriptor attached. Nothing else may be waiting to be sent; that is so after a first request.
    pub(crate) fn hand_over(&mut self, reply: &Reply, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
        debug_assert!(!self.has_unsent());
        let mut bytes = Vec::new();
        encode_json(&mut bytes, reply).expect("a short reply is short enough");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(Errno::NOBUFS);
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match sendmsg(&self.fd, &[IoSlice::new(&bytes)], &mut control, flags)? {
            sent if sent == bytes.len() => Ok(()),
            _ => Err(Errno::MSGSIZE),
        }
    }

    /// Reads once into the shared buffer.
    pub(crate) fn read(&mut self, buffer: &mut [u8], now: Moment) -> Read {
        match recv(&self.fd, &mut *buffer, RecvFlags::DONTWAIT) {
            Ok((0, _)) => self.is_over = true,
            Ok((length, _)) => {
                self.decoder.push(&buffer[..length]);
                self.moved = now;
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return Read::Broken,
        }
        Read::Some
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
