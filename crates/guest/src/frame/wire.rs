//! The primitives of all payloads: little-endian numbers, one-byte tags, byte strings with a `u32` length.
//!
//! Nothing is allocated for a length or a count before its bytes are known to be present.

use alloc::vec::Vec;

use super::{FrameError, HEADER_LEN, Stream};

pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(payload: &'a [u8]) -> Self {
        Reader { rest: payload }
    }

    /// Fails unless every byte was read, so that a payload has exactly one meaning.
    pub(super) fn finish(self) -> Result<(), FrameError> {
        match self.rest.len() {
            0 => Ok(()),
            count => Err(FrameError::TrailingBytes(count)),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or(FrameError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, FrameError> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, FrameError> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, FrameError> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn bool(&mut self, field: &'static str) -> Result<bool, FrameError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Invalid(field)),
        }
    }

    pub(super) fn stream(&mut self) -> Result<Stream, FrameError> {
        match self.u8()? {
            1 => Ok(Stream::Stdout),
            2 => Ok(Stream::Stderr),
            _ => Err(FrameError::Invalid("stream")),
        }
    }

    pub(super) fn option<T>(
        &mut self,
        field: &'static str,
        value: impl FnOnce(&mut Self) -> Result<T, FrameError>,
    ) -> Result<Option<T>, FrameError> {
        if self.bool(field)? { value(self).map(Some) } else { Ok(None) }
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, FrameError> {
        let length = self.u32()? as usize;
        let (head, rest) = self.rest.split_at_checked(length).ok_or(FrameError::Truncated)?;
        self.rest = rest;
        Ok(head.to_vec())
    }

    /// All remaining bytes, for frames whose last field is their content.
    pub(super) fn rest(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.rest).to_vec()
    }

    pub(super) fn list<T>(
        &mut self,
        field: &'static str,
        limit: usize,
        mut entry: impl FnMut(&mut Self) -> Result<T, FrameError>,
    ) -> Result<Vec<T>, FrameError> {
        let count = self.u32()? as usize;
        if count > limit {
            return Err(FrameError::TooMany { field, count, limit });
        }
        let mut list = Vec::new();
        for _ in 0..count {
            list.push(entry(self)?);
        }
        Ok(list)
    }
}

/// Appends one frame of `kind` whose payload `write` produces; `out` is unchanged if the payload is too long.
pub(super) fn append(
    out: &mut Vec<u8>,
    kind: u8,
    limit: usize,
    write: impl FnOnce(&mut Vec<u8>),
) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind]);
    write(out);
    let length = out.len() - start - HEADER_LEN;
    if length > limit {
        out.truncate(start);
        return Err(FrameError::TooLong { kind, length, limit });
    }
    // `limit` is far below u32::MAX, so the cast keeps the value.
    out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(())
}

pub(super) fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_bool(out: &mut Vec<u8>, value: bool) {
    out.push(u8::from(value));
}

pub(super) fn put_stream(out: &mut Vec<u8>, stream: Stream) {
    out.push(match stream {
        Stream::Stdout => 1,
        Stream::Stderr => 2,
    });
}

pub(super) fn put_option<T>(out: &mut Vec<u8>, value: Option<T>, put: impl FnOnce(&mut Vec<u8>, T)) {
    put_bool(out, value.is_some());
    if let Some(value) = value {
        put(out, value);
    }
}

pub(super) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // A string too long for its length field makes the frame too long as well, so `append` refuses it.
    put_u32(out, bytes.len() as u32);
    out.extend_from_slice(bytes);
}

pub(super) fn put_list<T>(out: &mut Vec<u8>, list: &[T], mut put: impl FnMut(&mut Vec<u8>, &T)) {
    put_u32(out, list.len() as u32);
    for entry in list {
        put(out, entry);
    }
}
