//! The frames of a WebSocket, as its server sends them: their payloads are scrubbed as one stream, so that a value is found if it is split
//! over frames or messages. Their headers pass as they are, because a replaced value keeps its length.
//!
//! A ping or another control frame may come between two parts of a value. It is scrubbed by itself.

use std::collections::VecDeque;
use std::sync::Arc;

use hyper::body::Bytes;
use zeroize::Zeroizing;

use crate::secret::scrub::{Patterns, Scrubber};

/// The longest header of a frame without a mask, in bytes.
const HEADER_MAX: usize = 10;
/// The longest payload of a control frame.
const CONTROL_MAX: u64 = 125;
/// Frames without a byte of a message, one after the other, that wait for what is held back before them. A server that pings all the time
/// must not delay a message for ever.
const IDLE_MAX: u32 = 8;
const CONTROL: u8 = 0x08;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

pub struct Frames {
    patterns: Arc<Patterns>,
    scrubber: Scrubber,
    /// What has come of a header.
    header: Vec<u8>,
    within: Within,
    /// What is held back, in the order in which it came.
    held: VecDeque<Piece>,
    /// Frames since the last byte of a message.
    idle: u32,
}

/// Where in a frame the stream is.
enum Within {
    Header,
    /// So many bytes of a message's payload are to come.
    Data(u64),
    /// The payload of a control frame, and how many bytes of it are to come.
    Control(Zeroizing<Vec<u8>>, u64),
}

enum Piece {
    /// It waits for what came before it.
    Ready(Bytes),
    /// So many bytes that the scrubber has.
    Payload(usize),
}

/// In these frames no value could be found: they are masked or compressed, or are not frames.
#[derive(Debug, thiserror::Error)]
#[error("the server sent a WebSocket frame that is masked, compressed or malformed")]
pub struct Unreadable;

impl Frames {
    pub fn new(patterns: Arc<Patterns>) -> Self {
        let scrubber = Scrubber::new(Arc::clone(&patterns));
        Self { patterns, scrubber, header: Vec::new(), within: Within::Header, held: VecDeque::new(), idle: 0 }
    }

    /// Takes a chunk. Returns what is certain by now, which may be nothing.
    pub fn push(&mut self, chunk: Bytes) -> Result<Bytes, Unreadable> {
        let mut certain = Vec::with_capacity(chunk.len());
        let mut rest = chunk;
        while !rest.is_empty() {
            match &mut self.within {
                Within::Header => {
                    self.header.extend_from_slice(&rest.split_to(1));
                    if let Some(within) = opened(&self.header)? {
                        self.held.push_back(Piece::Ready(std::mem::take(&mut self.header).into()));
                        self.within = within;
                        self.idle += 1;
                    }
                }
                Within::Data(left) => {
                    let count = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= count as u64;
                    self.idle = 0;
                    self.held.push_back(Piece::Payload(count));
                    let passed = self.scrubber.push(rest.split_to(count));
                    self.pass(&mut certain, passed);
                }
                Within::Control(payload, left) => {
                    let count = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= count as u64;
                    payload.extend_from_slice(&rest.split_to(count));
                    if *left == 0 {
                        let scrubbed = self.patterns.scrubbed(payload).unwrap_or_else(|| payload.to_vec());
                        self.held.push_back(Piece::Ready(scrubbed.into()));
                    }
                }
            }
            if matches!(self.within, Within::Data(0) | Within::Control(_, 0)) {
                self.within = Within::Header;
            }
            if self.idle > IDLE_MAX {
                self.idle = 0;
                let payload = self.scrubber.release();
                self.pass(&mut certain, payload);
            }
        }
        self.pass(&mut certain, Bytes::new());
        Ok(certain.into())
    }

    /// How many pieces are held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Gives out what is held back. What follows is still understood as its continuation.
    pub fn release(&mut self) -> Bytes {
        let mut released = Vec::new();
        let payload = self.scrubber.release();
        self.pass(&mut released, payload);
        released.into()
    }

    /// The end of the stream.
    pub fn finish(&mut self) -> Bytes {
        let mut rest = Vec::new();
        let payload = self.scrubber.finish();
        self.pass(&mut rest, payload);
        // A frame that was cut.
        match std::mem::replace(&mut self.within, Within::Header) {
            Within::Header => rest.append(&mut self.header),
            Within::Control(payload, _) => {
                rest.extend_from_slice(&self.patterns.scrubbed(&payload).unwrap_or_else(|| payload.to_vec()));
            }
            Within::Data(_) => {}
        }
        rest.into()
    }

    /// Puts payload that the scrubber has let go in its place between headers.
    fn pass(&mut self, into: &mut Vec<u8>, mut payload: Bytes) {
        while let Some(first) = self.held.front_mut() {
            match first {
                Piece::Ready(bytes) => into.extend_from_slice(bytes),
                Piece::Payload(count) => {
                    let passed = payload.len().min(*count);
                    into.extend_from_slice(&payload.split_to(passed));
                    *count -= passed;
                    if *count > 0 {
                        return;
                    }
                }
            }
            self.held.pop_front();
        }
        debug_assert!(payload.is_empty(), "all that the scrubber lets go was pushed before");
    }
}

/// What a header announces; `None` if it is not complete.
fn opened(header: &[u8]) -> Result<Option<Within>, Unreadable> {
    let (first, second) = match header {
        [first, second, ..] => (*first, *second),
        _ => return Ok(None),
    };
    let extended = match second & !MASKED {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    if header.len() < 2 + extended {
        debug_assert!(header.len() < HEADER_MAX, "no header is longer");
        return Ok(None);
    }
    let length = match extended {
        0 => u64::from(second & !MASKED),
        _ => header[2..].iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
    };
    let is_control = first & CONTROL != 0;
    if first & RESERVED != 0 || second & MASKED != 0 || (is_control && length > CONTROL_MAX) {
        return Err(Unreadable);
    }
    Ok(Some(match is_control {
        true => Within::Control(Zeroizing::new(Vec::with_capacity(CONTROL_MAX as usize)), length),
        false => Within::Data(length),
    }))
}
