//! The control channel: frames in and out, with a bound on those that wait.
//!
//! Outgoing frames are queued and written when the host reads. Above [`OUTGOING_MARK`] the event loop stops reading
//! programs' output, so a slow host slows the programs down and nothing grows. Other frames about execs are small and
//! answer the host's own frames; a host that provokes them without ever reading is cut off at [`OUTGOING_MAX`].
//!
//! Descriptors come with the first byte of their frame, and the kernel delivers them no later than that byte. They wait
//! in a queue until their frame is complete. If no frame is incomplete and one is still unclaimed, the host broke the
//! protocol.

use alloc::vec;
use alloc::vec::Vec;

use saggar_guest::{Decoder, FromGuest, JOINS_MAX, ToGuest};

use super::sys::{self, Errno, Fd, Wait};
use super::{Leave, socket};

/// Above this many unsent bytes no program's output is read.
const OUTGOING_MARK: usize = 256 * 1024;

/// At this many unsent bytes the host is not reading, and the agent gives up. Outputs alone never reach it.
const OUTGOING_MAX: usize = 1024 * 1024;

/// Sent bytes are removed from the front of the queue in pieces of at least this size.
const COMPACT_AT: usize = 64 * 1024;

/// Bytes read at once.
const INCOMING_CHUNK: usize = 64 * 1024;

pub(super) struct Channel {
    fd: Fd,
    decoder: Decoder<ToGuest>,
    incoming: Vec<u8>,
    // INVARIANT: at most JOINS_MAX between two calls of `receive`, and none unless a frame is incomplete.
    descriptors: Vec<Fd>,
    outgoing: Vec<u8>,
    // INVARIANT: at most `outgoing.len()`.
    sent: usize,
}

/// A frame and its descriptors.
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

    pub(super) fn send(&mut self, frame: &FromGuest) -> Result<(), Leave> {
        if self.unsent() > OUTGOING_MAX {
            return Err(Leave::Protocol);
        }
        // The agent makes no invalid frame; if it did, the host could not interpret what follows.
        frame.encode(&mut self.outgoing).map_err(|_| Leave::Broken)
    }

    /// Writes as much as the host accepts now.
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

    /// Writes everything, waiting for the host as long as necessary: the host decides how long that may be.
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

    /// Reads once and returns the frames that are now complete.
    pub(super) fn receive(&mut self) -> Result<Vec<Received>, Leave> {
        let count = match socket::receive(&self.fd, &mut self.incoming, &mut self.descriptors) {
            Ok(0) => return Err(Leave::HostGone),
            Ok(count) => count,
            Err(Errno(libc::EAGAIN)) => 0,
            // There were more than fit: the others are lost, and it is unclear which frames they belonged to.
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
