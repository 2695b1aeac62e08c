//! The control channel: frames in, frames out, never more than a bound of them waiting.
//!
//! What is to be sent is queued and written when the host takes it. Above [`OUTGOING_MARK`] the event loop stops reading
//! what programs write, so a slow host slows the programs down and nothing grows. Frames about execs themselves are small
//! and answer the host's own frames; a host that provokes them without ever reading is cut off at [`OUTGOING_MAX`].
//!
//! Descriptors come with the first byte of the frame they belong to, and the kernel hands them over no later than that byte. So they wait in
//! a queue until their frame is whole, and any that no frame has asked for by the time there is none unfinished is a broken rule.

use alloc::vec;
use alloc::vec::Vec;

use saggar_guest::{Decoder, FromGuest, JOINS_MAX, ToGuest};

use super::sys::{self, Errno, Fd, Wait};
use super::{Leave, socket};

/// Above this many unsent bytes no program's output is read.
const OUTGOING_MARK: usize = 256 * 1024;

/// With this many unsent bytes the host is not reading and the agent gives up. Never reached by outputs alone.
const OUTGOING_MAX: usize = 1024 * 1024;

/// Sent bytes are cut off the front of the queue in pieces of at least this size.
const COMPACT_AT: usize = 64 * 1024;

/// How much is read at once.
const INCOMING_CHUNK: usize = 64 * 1024;

pub(super) struct Channel {
    fd: Fd,
    decoder: Decoder<ToGuest>,
    incoming: Vec<u8>,
    // INVARIANT: at most JOINS_MAX between two calls of `receive`, and none unless a frame is unfinished.
    descriptors: Vec<Fd>,
    outgoing: Vec<u8>,
    // INVARIANT: at most `outgoing.len()`.
    sent: usize,
}

/// A frame and what came with it.
pub(super) struct Received {
    pub(super) frame: ToGuest,
    pub(super) descriptors: Vec<Fd>,
}

impl Channel {
    pub(super) fn new(fd: Fd) -> Result<Channel, Errno> {
        fd.set_nonblocking()?;
        Ok(Channel {
            fd,
            decoder: Decoder::new(),
            incoming: vec![0; INCOMING_CHUNK],
            descriptors: Vec::new(),
            outgoing: Vec::new(),
            sent: 0,
        })
    }

    pub(super) fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Whether there is room for more output of programs.
    pub(super) fn has_room(&self) -> bool {
        self.unsent() <= OUTGOING_MARK
    }

    pub(super) fn unsent(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Queues a frame.
    pub(super) fn send(&mut self, frame: &FromGuest) -> Result<(), Leave> {
        if self.unsent() > OUTGOING_MAX {
            return Err(Leave::Protocol);
        }
        // The agent makes no frame that breaks the rules; if it did, the host could not make sense of what follows.
        frame.encode(&mut self.outgoing).map_err(|_| Leave::Broken)
    }

    /// Writes what the host takes now.
    pub(super) fn flush(&mut self) -> Result<(), Leave> {
        while self.unsent() > 0 {
            match self.fd.write(&self.outgoing[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(Errno(libc::EAGAIN)) => break,
                Err(_) => return Err(Leave::HostGone),
            }
        }
        if self.unsent() == 0 {
            self.outgoing.clear();
            self.sent = 0;
        } else if self.sent >= COMPACT_AT {
            self.outgoing.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }

    /// Writes everything, waiting for the host as long as it takes: how long that may be is for the host to decide.
    pub(super) fn flush_all(&mut self) -> Result<(), Leave> {
        loop {
            self.flush()?;
            if self.unsent() == 0 {
                return Ok(());
            }
            let mut entry = [libc::pollfd { fd: self.fd.raw(), events: libc::POLLOUT, revents: 0 }];
            sys::poll(&mut entry, Wait::Forever).map_err(|_| Leave::Broken)?;
        }
    }

    /// Reads once and returns the frames that are complete by that.
    pub(super) fn receive(&mut self) -> Result<Vec<Received>, Leave> {
        let count = match socket::receive(&self.fd, &mut self.incoming, &mut self.descriptors) {
            Ok(0) => return Err(Leave::HostGone),
            Ok(count) => count,
            Err(Errno(libc::EAGAIN)) => 0,
            // More of them than there is room for: the rest is lost, and with it whose they are.
            Err(Errno(libc::EMSGSIZE)) => return Err(Leave::Protocol),
            Err(_) => return Err(Leave::HostGone),
        };
        let mut input = &self.incoming[..count];
        let mut received = Vec::new();
        while let Some(frame) = self.decoder.next_frame(&mut input).map_err(|_| Leave::Protocol)? {
            let wanted = frame.descriptors();
            if wanted > self.descriptors.len() {
                return Err(Leave::Protocol);
            }
            received.push(Received { frame, descriptors: self.descriptors.drain(..wanted).collect() });
        }
        let may_wait = self.decoder.is_mid_frame() && self.descriptors.len() <= JOINS_MAX;
        if self.descriptors.is_empty() || may_wait { Ok(received) } else { Err(Leave::Protocol) }
    }
}
