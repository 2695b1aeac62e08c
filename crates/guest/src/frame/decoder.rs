//! Decodes a byte stream into frames.
//!
//! The decoder takes from the input only what the current frame still needs, so it never holds more than one incomplete
//! frame: its memory is bounded by the largest frame of its direction, whatever the input and its fragmentation. A
//! refused frame is final: the start of the next one is unknown, and every later call repeats the error.

use alloc::vec::Vec;
use core::marker::PhantomData;

use super::{FrameError, HEADER_LEN};

/// A direction of the channel: its kinds, their bounds and how each is decoded.
pub trait Message: Sized {
    /// Maximum payload of `kind`, or `None` if this direction has no such kind.
    fn payload_max(kind: u8) -> Option<usize>;

    /// Decodes one payload, which is not longer than `payload_max(kind)`.
    fn decode(kind: u8, payload: &[u8]) -> Result<Self, FrameError>;
}

/// Reads frames of one direction out of a byte stream that arrives in arbitrary pieces.
///
/// ```
/// use saggar_guest::{Decoder, FromGuest};
/// # fn handle(_: FromGuest) {}
/// # fn received(mut bytes: &[u8], decoder: &mut Decoder<FromGuest>) -> Result<(), saggar_guest::FrameError> {
/// while let Some(frame) = decoder.next_frame(&mut bytes)? {
///     handle(frame);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Decoder<M> {
    header: [u8; HEADER_LEN],
    header_filled: usize,
    // INVARIANT: never longer than the bound of the kind in `header`.
    payload: Vec<u8>,
    refused: Option<FrameError>,
    direction: PhantomData<fn() -> M>,
}

impl<M> Default for Decoder<M> {
    fn default() -> Self {
        Decoder {
            header: [0; HEADER_LEN],
            header_filled: 0,
            payload: Vec::new(),
            refused: None,
            direction: PhantomData,
        }
    }
}

impl<M: Message> Decoder<M> {
    /// A decoder at the start of a frame.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes off the front of `input` until a frame is complete or `input` is empty. `Ok(None)` means that all of
    /// it was taken and more is needed. Call again until `None`: one piece may contain many frames.
    pub fn next_frame(&mut self, input: &mut &[u8]) -> Result<Option<M>, FrameError> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        let frame = self.advance(input);
        if let Err(error) = frame {
            self.refused = Some(error);
            self.payload = Vec::new();
        }
        frame
    }

    /// Whether a frame is incomplete: if the stream ends here, it was cut.
    pub fn is_mid_frame(&self) -> bool {
        self.header_filled > 0
    }

    fn advance(&mut self, input: &mut &[u8]) -> Result<Option<M>, FrameError> {
        let missing = take(input, HEADER_LEN - self.header_filled);
        self.header[self.header_filled..self.header_filled + missing.len()].copy_from_slice(missing);
        self.header_filled += missing.len();
        if self.header_filled < HEADER_LEN {
            return Ok(None);
        }

        let [a, b, c, d, kind] = self.header;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let limit = M::payload_max(kind).ok_or(FrameError::UnknownKind(kind))?;
        if length > limit {
            return Err(FrameError::TooLong { kind, length, limit });
        }

        let missing = take(input, length - self.payload.len());
        if self.payload.is_empty() && missing.len() == length {
            // The whole payload is in the input: no need to copy it first.
            self.header_filled = 0;
            return M::decode(kind, missing).map(Some);
        }
        self.payload.extend_from_slice(missing);
        if self.payload.len() < length {
            return Ok(None);
        }
        self.header_filled = 0;
        // The buffer is freed, too: one large `Exec` must not cost memory for the rest of a sandbox's life.
        let payload = core::mem::take(&mut self.payload);
        M::decode(kind, &payload).map(Some)
    }
}

fn take<'a>(input: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (head, rest) = input.split_at(count.min(input.len()));
    *input = rest;
    head
}
