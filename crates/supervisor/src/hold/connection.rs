//! One control connection: frames in through a bounded decoder, frames out through a bounded buffer, and its role.
//!
//! The role changes only once: a request for a stream makes the connection that stream until it closes. Every other
//! request is answered, and the next one may follow.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, recv, send, sendmsg};
use saggar_domain::Problem;

use crate::control::{Decoder, Reply, encode_json};

use super::moment::Moment;
use super::ring::Cursor;

/// Bytes queued for a slow reader before no more are added.
const OUT_MAX: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Connection {
    fd: OwnedFd,
    pub(crate) decoder: Decoder,
    pub(crate) role: Role,
    /// When data last went in or out, or the output was empty.
    pub(crate) moved: Moment,
    out: Vec<u8>,
    sent: usize,
    /// Whether the other side no longer reads, and only its remaining input is handled.
    is_deaf: bool,
    /// Whether the other side will send no more.
    pub(crate) is_over: bool,
}

#[derive(Debug)]
pub(crate) enum Role {
    /// No request has arrived yet.
    Asking,
    /// It requested an exec that hasn't started yet.
    Starting { exec: u32, follows: bool, feeds: bool },
    /// It gets an exec's output.
    Following(Following),
    /// It gets events after this one.
    Hearing { after: u64 },
    /// It waits until an exec has no process left.
    Burying { exec: u32 },
    /// Waits until new network rules are in force.
    Ruling,
    /// Waits until the sandbox was made again.
    BeginningAgain,
    /// Everything stands still while it lasts.
    Stilling,
    /// It waits for the sandbox's end.
    Dying,
    /// Everything was queued for it; it closes once that is sent.
    Leaving,
}

#[derive(Debug)]
pub(crate) struct Following {
    pub(crate) exec: u32,
    pub(crate) cursor: Cursor,
    /// Whether it supplies the exec's stdin.
    pub(crate) feeds: bool,
    /// It read nothing for so long that the program no longer waits for it.
    pub(crate) is_lossy: bool,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Some data, or none yet.
    Some,
    /// The other side is gone.
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

    /// The other side no longer reads. Its earlier input may still be stdin for a program: then the connection is kept
    /// until all of that is taken, for nothing else. Returns whether it is kept.
    pub(crate) fn is_heard_out(&mut self) -> bool {
        let Role::Following(following) = &mut self.role else { return false };
        // Its reading is no longer waited for.
        following.is_lossy = true;
        (self.out, self.sent, self.is_deaf) = (Vec::new(), 0, true);
        following.feeds && !self.is_over
    }

    pub(crate) fn say(&mut self, reply: &Reply) {
        let queued = encode_json(&mut self.out, reply);
        if queued.is_err() {
            // Only a description could be this long, and those are bounded; the client at least learns that.
            let problem = Problem::new(saggar_domain::Code::TooMany, "the answer is too long", "ask for less");
            encode_json(&mut self.out, &Reply::Error(problem)).expect("a short problem is short enough");
        }
    }

    /// The output buffer, for frames that aren't replies.
    pub(crate) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    pub(crate) fn has_room(&self) -> bool {
        self.out.len() - self.sent < OUT_MAX
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.sent < self.out.len()
    }

    /// Sends as much as possible now; an error means that the other side is gone.
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
            // Frees the buffer: an idle connection costs next to nothing.
            (self.out, self.sent) = (Vec::new(), 0);
        }
        Ok(())
    }

    /// Sends a reply with a descriptor attached. The output must be empty, which it is after a first request.
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
