//! Frames of the control connection: `[u32 length][u8 kind][payload]`, little-endian; `length` is that of the payload.
//!
//! Sans-IO, so that the poll loop of a supervisor and the tasks of a server read with the same code.
//!
//! INVARIANT: data from the other side takes at most [`JSON_MAX`] in memory, and is either a frame or an error.

use saggar_domain::OutputStream;
use serde::Serialize;

/// Maximum payload length. A description of 512 execs with long command lines is the largest.
pub const JSON_MAX: usize = 4 * 1024 * 1024;
/// Maximum length of one piece of a program's bytes.
const DATA_MAX: usize = 256 * 1024;
const HEADER_LEN: usize = 5;

const JSON: u8 = 0;
const OUTPUT: u8 = 1;
const STDIN: u8 = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A request or a reply.
    Json(Vec<u8>),
    /// Bytes a program wrote.
    Output {
        stream: OutputStream,
        /// Number of bytes of that stream before these.
        offset: u64,
        bytes: Vec<u8>,
    },
    /// Bytes for a program to read.
    Stdin(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    #[error("a frame of {0} bytes is too long")]
    TooLong(usize),
    #[error("output of unknown stream {0}")]
    Stream(u8),
    #[error("a frame is cut short")]
    TooShort,
}

/// Decodes a byte stream into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    start: usize,
}

impl Decoder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends bytes that were read.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start > DATA_MAX {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Number of bytes held for an incomplete frame, or for frames not yet taken.
    pub fn held(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// The next complete frame, if there is one.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let rest = &self.bytes[self.start..];
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let [a, b, c, d, kind] = *header;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let most = match kind {
            JSON => JSON_MAX,
            OUTPUT | STDIN => DATA_MAX + 9,
            unknown => return Err(FrameError::Kind(unknown)),
        };
        if length > most {
            return Err(FrameError::TooLong(length));
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let frame = match kind {
            JSON => Frame::Json(payload.to_vec()),
            STDIN => Frame::Stdin(payload.to_vec()),
            _ => {
                let (head, bytes) = payload.split_first_chunk::<9>().ok_or(FrameError::TooShort)?;
                let [stream, offset @ ..] = *head;
                let stream = OutputStream::from_number(stream).ok_or(FrameError::Stream(stream))?;
                Frame::Output { stream, offset: u64::from_le_bytes(offset), bytes: bytes.to_vec() }
            }
        };
        self.start += HEADER_LEN + length;
        Ok(Some(frame))
    }
}

/// Appends a request or a reply.
pub fn encode_json<T: Serialize>(out: &mut Vec<u8>, value: &T) -> Result<(), FrameError> {
    let start = header(out, JSON);
    // Writing to memory fails only for values that can't be JSON (a map whose keys aren't text), and no control type
    // has one.
    serde_json::to_writer(&mut *out, value).expect("every control type is JSON");
    finish(out, start, JSON_MAX)
}

/// Appends bytes that a program wrote; at most 256 KiB at once.
pub fn encode_output(out: &mut Vec<u8>, stream: OutputStream, offset: u64, bytes: &[u8]) -> Result<(), FrameError> {
    let start = header(out, OUTPUT);
    out.push(stream.number());
    out.extend_from_slice(&offset.to_le_bytes());
    out.extend_from_slice(bytes);
    finish(out, start, DATA_MAX + 9)
}

/// Appends bytes for a program; at most 256 KiB at once.
pub fn encode_stdin(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), FrameError> {
    let start = header(out, STDIN);
    out.extend_from_slice(bytes);
    finish(out, start, DATA_MAX)
}

fn header(out: &mut Vec<u8>, kind: u8) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind]);
    start
}

fn finish(out: &mut Vec<u8>, start: usize, most: usize) -> Result<(), FrameError> {
    let length = out.len() - start - HEADER_LEN;
    if length > most {
        out.truncate(start);
        return Err(FrameError::TooLong(length));
    }
    // `most` is far below u32::MAX, so the cast keeps the value.
    out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_read_back_however_they_are_cut() {
        let mut wire = Vec::new();
        encode_json(&mut wire, &serde_json::json!({"v": 1})).unwrap();
        encode_output(&mut wire, OutputStream::Stderr, 7, b"bytes").unwrap();
        encode_stdin(&mut wire, b"").unwrap();
        for size in 1..wire.len() {
            let mut decoder = Decoder::new();
            let mut frames = Vec::new();
            for piece in wire.chunks(size) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    frames.push(frame);
                }
            }
            assert_eq!(
                frames,
                [
                    Frame::Json(br#"{"v":1}"#.to_vec()),
                    Frame::Output { stream: OutputStream::Stderr, offset: 7, bytes: b"bytes".to_vec() },
                    Frame::Stdin(Vec::new())
                ]
            );
        }
    }

    #[test]
    fn what_is_too_long_or_unknown_is_refused_at_its_header() {
        let mut decoder = Decoder::new();
        decoder.push(&[255, 255, 255, 255, JSON]);
        assert_eq!(decoder.next_frame(), Err(FrameError::TooLong(u32::MAX as usize)));
        let mut decoder = Decoder::new();
        decoder.push(&[0, 0, 0, 0, 9]);
        assert_eq!(decoder.next_frame(), Err(FrameError::Kind(9)));
        let mut decoder = Decoder::new();
        decoder.push(&[1, 0, 0, 0, OUTPUT, 1]);
        assert_eq!(decoder.next_frame(), Err(FrameError::TooShort));
        let mut decoder = Decoder::new();
        decoder.push(&[9, 0, 0, 0, OUTPUT, 3, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decoder.next_frame(), Err(FrameError::Stream(3)));
    }
}
