//! The file format: front, padding, payload, trailer. Read by the front that carries it, so both are always of one build.
//!
//! ```text
//! 0        front, as linked
//! offset   payload, as linked; a multiple of 64 KiB, so that its segments can be mapped from here
//! …        trailer: magic (8 bytes), version (u32), zero (u32), offset, length, checksum (u64 each); little-endian
//! ```
//! The checksum covers the trailer and the payload's first page, which holds the headers. It is against damage by accident, and leaves most of
//! the payload out: to read all of it would cost every command more than its start does. Whoever can write this file needs no checksum.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::image::{HEADERS_LEN, Image, Malformed};

const MAGIC: [u8; 8] = *b"SAGGAR\0P";
const VERSION: u32 = 1;
const TRAILER_LEN: usize = 40;
/// The largest page of any architecture that Linux runs on with our target.
const ALIGNMENT: u64 = 64 << 10;

/// Where a program lies in a file.
#[derive(Debug)]
pub struct Payload {
    pub(crate) file: File,
    pub(crate) offset: u64,
    pub(crate) image: Image,
}

/// Why a file's payload can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Damaged {
    #[error("it can't be read")]
    Read(#[source] io::Error),
    #[error("its end is missing")]
    NoTrailer,
    #[error("its end has version {0}, which this build does not know")]
    Version(u32),
    #[error("its end disagrees with its length")]
    Length,
    #[error("its bytes have changed")]
    Checksum,
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl Payload {
    /// The payload that a file carries.
    pub fn carried_by(file: File) -> Result<Self, Damaged> {
        let length = file.metadata().map_err(Damaged::Read)?.len();
        let mut bytes = [0; TRAILER_LEN];
        let begin = length.checked_sub(TRAILER_LEN as u64).ok_or(Damaged::NoTrailer)?;
        file.read_exact_at(&mut bytes, begin).map_err(Damaged::Read)?;
        let trailer = Trailer::parse(&bytes)?;
        let end = trailer.offset.checked_add(trailer.length);
        if end != Some(begin) || trailer.offset % ALIGNMENT != 0 || trailer.length < HEADERS_LEN as u64 {
            return Err(Damaged::Length);
        }
        let headers = headers(&file, trailer.offset)?;
        if trailer.checksum != trailer.sum(&headers) {
            return Err(Damaged::Checksum);
        }
        Ok(Self { image: Image::parse(&headers, trailer.length)?, offset: trailer.offset, file })
    }

    /// A whole file as the payload, for builds that are not packed.
    pub fn whole(file: File) -> Result<Self, Damaged> {
        let length = file.metadata().map_err(Damaged::Read)?.len();
        Ok(Self { image: Image::parse(&headers(&file, 0)?, length)?, offset: 0, file })
    }
}

fn headers(file: &File, offset: u64) -> Result<[u8; HEADERS_LEN], Damaged> {
    let mut headers = [0; HEADERS_LEN];
    file.read_exact_at(&mut headers, offset).map_err(Damaged::Read)?;
    Ok(headers)
}

/// One file of a front and a payload. A front that carries one already gets the new one instead.
pub fn pack(front: &[u8], payload: &[u8]) -> Result<Vec<u8>, Damaged> {
    let front = without_payload(front);
    let headers: [u8; HEADERS_LEN] =
        payload.get(..HEADERS_LEN).and_then(|bytes| bytes.try_into().ok()).ok_or(Malformed::Short)?;
    Image::parse(&headers, payload.len() as u64)?;
    let offset = (front.len() as u64).next_multiple_of(ALIGNMENT);
    let mut trailer = Trailer { offset, length: payload.len() as u64, checksum: 0 };
    trailer.checksum = trailer.sum(&headers);
    let mut packed = Vec::with_capacity(offset as usize + payload.len() + TRAILER_LEN);
    packed.extend_from_slice(front);
    packed.resize(offset as usize, 0);
    packed.extend_from_slice(payload);
    packed.extend_from_slice(&trailer.to_bytes());
    Ok(packed)
}

fn without_payload(front: &[u8]) -> &[u8] {
    let trailer = front.last_chunk().and_then(|bytes: &[u8; TRAILER_LEN]| Trailer::parse(bytes).ok());
    trailer.and_then(|trailer| front.get(..usize::try_from(trailer.offset).ok()?)).unwrap_or(front)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Trailer {
    offset: u64,
    length: u64,
    checksum: u64,
}

impl Trailer {
    fn parse(bytes: &[u8; TRAILER_LEN]) -> Result<Self, Damaged> {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        if bytes[..8] != MAGIC {
            return Err(Damaged::NoTrailer);
        }
        let version = number(8);
        if version != u64::from(VERSION) {
            return Err(Damaged::Version(version as u32));
        }
        Ok(Self { offset: number(16), length: number(24), checksum: number(32) })
    }

    fn to_bytes(self) -> [u8; TRAILER_LEN] {
        let mut bytes = [0; TRAILER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        let numbers = [u64::from(VERSION), self.offset, self.length, self.checksum];
        for (place, number) in bytes[8..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// FNV-1a.
    fn sum(self, headers: &[u8; HEADERS_LEN]) -> u64 {
        let fields = Self { checksum: 0, ..self }.to_bytes();
        fields
            .iter()
            .chain(headers)
            .fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
    }
}
