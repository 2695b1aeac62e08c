//! Packs: many objects in one file, some as differences from others, with an index by id.
//!
//! Both files may be written by a stranger: every number in them is checked before it is used, and chains of differences have a bound.
//! Whether an object is the one that was asked for is decided by its id, not here.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;

use flate2::bufread::ZlibDecoder;

use super::object::{OBJECT_LEN_MAX, Object, ObjectError, ObjectId, ObjectKind};
use super::work::Work;

/// Maximum number of differences on top of one another; git's own.
const CHAIN_MAX: usize = 4095;
/// Where an index has its ids: after the magic number, the version, and 256 counts.
const IDS_AT: u64 = 8 + 256 * 4;

#[derive(Debug)]
pub(crate) struct Pack {
    index: File,
    pack: File,
    /// How many ids begin with at most each byte.
    counts: Vec<u32>,
}

/// What an object is made from.
enum Base {
    Whole(ObjectKind),
    At(u64),
    Named(ObjectId),
}

impl Pack {
    pub(crate) fn open(index: File, pack: File) -> Result<Self, ObjectError> {
        let mut head = [0; IDS_AT as usize];
        index.read_exact_at(&mut head, 0).map_err(|_| ObjectError::Pack)?;
        if head[..8] != *b"\xfftOc\0\0\0\x02" {
            return Err(ObjectError::Pack);
        }
        let counts: Vec<u32> = head[8..].chunks_exact(4).map(number).collect();
        if !counts.is_sorted() {
            return Err(ObjectError::Pack);
        }
        Ok(Self { index, pack, counts })
    }

    /// Where an object begins in the pack.
    pub(crate) fn find(&self, id: ObjectId) -> Result<Option<u64>, ObjectError> {
        let first = usize::from(id.0[0]);
        let from = u64::from(if first == 0 { 0 } else { self.counts[first - 1] });
        let (to, all) = (u64::from(self.counts[first]), u64::from(self.counts[255]));
        // Nothing is read but what a search needs: how many ids an index says it has is a stranger's word.
        let (mut low, mut high) = (from, to);
        let at = loop {
            if low == high {
                return Ok(None);
            }
            let (middle, mut found) = (low + (high - low) / 2, [0; 20]);
            self.index.read_exact_at(&mut found, IDS_AT + middle * 20).map_err(|_| ObjectError::Pack)?;
            match found.cmp(&id.0) {
                Ordering::Less => low = middle + 1,
                Ordering::Equal => break middle,
                Ordering::Greater => high = middle,
            }
        };
        let offsets_at = IDS_AT + all * 24;
        let offset = self.number_at(offsets_at + at * 4)?;
        if offset & 0x8000_0000 == 0 {
            return Ok(Some(u64::from(offset)));
        }
        let long_at = offsets_at + all * 4 + u64::from(offset & 0x7fff_ffff) * 8;
        let (high, low) = (self.number_at(long_at)?, self.number_at(long_at + 4)?);
        Ok(Some(u64::from(high) << 32 | u64::from(low)))
    }

    fn number_at(&self, at: u64) -> Result<u32, ObjectError> {
        let mut bytes = [0; 4];
        self.index.read_exact_at(&mut bytes, at).map_err(|_| ObjectError::Pack)?;
        Ok(number(&bytes))
    }

    /// The object that begins there, whose parts count as `work`. `named` reads one that a difference names by its id; `len` is the length of all differences above it,
    /// so that a chain through several packs takes no more memory than one object may.
    pub(crate) fn read(
        &self,
        mut at: u64,
        id: ObjectId,
        mut len: u64,
        work: &Work,
        named: impl FnOnce(ObjectId, u64) -> Result<Object, ObjectError>,
    ) -> Result<Object, ObjectError> {
        let mut differences = Vec::new();
        let mut object = loop {
            let (base, content) = self.piece(at, id)?;
            len += content.len() as u64;
            work.spend(content.len() as u64)?;
            if differences.len() > CHAIN_MAX {
                return Err(ObjectError::Damaged(id));
            }
            if len > OBJECT_LEN_MAX {
                return Err(ObjectError::TooLong(id));
            }
            match base {
                Base::Whole(kind) => break Object { kind, content },
                Base::At(earlier) => {
                    differences.push(content);
                    at = earlier;
                }
                Base::Named(base) => {
                    differences.push(content);
                    break named(base, len)?;
                }
            }
        };
        for difference in differences.iter().rev() {
            object.content = patched(&object.content, difference).ok_or(ObjectError::Damaged(id))?;
            // A few bytes can make many, again and again.
            work.spend(object.content.len() as u64)?;
        }
        Ok(object)
    }

    fn piece(&self, at: u64, id: ObjectId) -> Result<(Base, Vec<u8>), ObjectError> {
        let mut reader = BufReader::with_capacity(16 * 1024, From { file: &self.pack, at });
        let damaged = || ObjectError::Damaged(id);
        let first = byte(&mut reader)?;
        let (mut size, mut shift, mut last) = (u64::from(first & 15), 4, first);
        while last & 0x80 != 0 {
            last = byte(&mut reader)?;
            size |= u64::from(last & 0x7f).checked_shl(shift).ok_or_else(damaged)?;
            shift += 7;
        }
        if size > OBJECT_LEN_MAX {
            return Err(ObjectError::TooLong(id));
        }
        let base = match (first >> 4) & 7 {
            1 => Base::Whole(ObjectKind::Commit),
            2 => Base::Whole(ObjectKind::Tree),
            3 => Base::Whole(ObjectKind::Blob),
            4 => Base::Whole(ObjectKind::Tag),
            6 => {
                let mut last = byte(&mut reader)?;
                let mut back = u64::from(last & 0x7f);
                while last & 0x80 != 0 {
                    last = byte(&mut reader)?;
                    back = (back + 1).checked_mul(128).ok_or_else(damaged)? | u64::from(last & 0x7f);
                }
                // It must go back, so that a chain ends.
                Base::At(at.checked_sub(back).filter(|earlier| *earlier < at).ok_or_else(damaged)?)
            }
            7 => {
                let mut base = [0; 20];
                reader.read_exact(&mut base)?;
                Base::Named(ObjectId(base))
            }
            _ => return Err(damaged()),
        };
        Ok((base, inflated(reader, size).ok_or_else(damaged)?))
    }
}

/// Exactly this many bytes of a compressed stream.
pub(crate) fn inflated(from: impl BufRead, size: u64) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    ZlibDecoder::new(from).take(size + 1).read_to_end(&mut content).ok()?;
    (content.len() as u64 == size).then_some(content)
}

/// What a difference makes of its base.
fn patched(base: &[u8], difference: &[u8]) -> Option<Vec<u8>> {
    let mut rest = difference;
    let (from_len, to_len) = (length(&mut rest)?, length(&mut rest)?);
    if from_len != base.len() as u64 || to_len > OBJECT_LEN_MAX {
        return None;
    }
    let mut made = Vec::with_capacity(to_len as usize);
    while let Some((code, tail)) = rest.split_first() {
        rest = tail;
        if code & 0x80 == 0 {
            let literal = rest.get(..usize::from(*code)).filter(|literal| !literal.is_empty())?;
            made.extend_from_slice(literal);
            rest = &rest[literal.len()..];
        } else {
            let (mut from, mut len) = (0usize, 0usize);
            for bit in 0..7 {
                if code & (1 << bit) != 0 {
                    let (value, tail) = rest.split_first()?;
                    rest = tail;
                    if bit < 4 {
                        from |= usize::from(*value) << (8 * bit);
                    } else {
                        len |= usize::from(*value) << (8 * (bit - 4));
                    }
                }
            }
            let len = if len == 0 { 0x10000 } else { len };
            made.extend_from_slice(base.get(from..from + len)?);
        }
        if made.len() as u64 > to_len {
            return None;
        }
    }
    (made.len() as u64 == to_len).then_some(made)
}

fn length(rest: &mut &[u8]) -> Option<u64> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let (byte, tail) = rest.split_first()?;
        *rest = tail;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        shift += 7;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn byte(reader: &mut impl Read) -> Result<u8, ObjectError> {
    let mut one = [0];
    reader.read_exact(&mut one).map_err(|_| ObjectError::Pack)?;
    Ok(one[0])
}

/// A file from one place on.
struct From<'a> {
    file: &'a File,
    at: u64,
}

impl Read for From<'_> {
    fn read(&mut self, space: &mut [u8]) -> std::io::Result<usize> {
        let length = self.file.read_at(space, self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_that_reaches_beyond_its_base_is_refused() {
        let base = b"0123456789";
        // Copy 4 from 2, then "ab".
        assert_eq!(patched(base, &[10, 6, 0x91, 2, 4, 2, b'a', b'b']), Some(b"2345ab".to_vec()));
        for broken in [
            &[10, 6, 0x91, 8, 4, 2, b'a', b'b'][..],
            &[9, 6, 0x91, 2, 4, 2, b'a', b'b'],
            &[10, 5, 0x91, 2, 4, 2, b'a', b'b'],
            &[10, 6, 0x91, 2, 4, 2, b'a'],
            &[10, 6, 0x91, 2, 4, 0],
            &[10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[],
        ] {
            assert_eq!(patched(base, broken), None, "{broken:?}");
        }
    }
}
