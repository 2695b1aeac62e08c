//! One block of 512 bytes as a header: fixed fields, numbers in octal or base 256, and a checksum.

use super::sparse::{Segment, Sparse};

pub(super) const BLOCK: usize = 512;

/// A header whose checksum is right.
pub(super) struct Block([u8; BLOCK]);

pub(super) enum Flag {
    Pax,
    PaxGlobal,
    LongName,
    LongLink,
    Other(u8),
}

impl Block {
    pub(super) fn parse(bytes: [u8; BLOCK]) -> Result<Self, &'static str> {
        // The checksum is computed with its own field as spaces.
        let sum: u64 = bytes
            .iter()
            .enumerate()
            .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u64::from(*byte) })
            .sum();
        let block = Self(bytes);
        if number(block.field(148, 8)) == Some(sum) { Ok(block) } else { Err("a header with a wrong checksum") }
    }

    pub(super) fn flag(&self) -> Flag {
        match self.0[156] {
            b'x' | b'X' => Flag::Pax,
            b'g' => Flag::PaxGlobal,
            b'L' => Flag::LongName,
            b'K' => Flag::LongLink,
            other => Flag::Other(other),
        }
    }

    pub(super) fn path(&self) -> Vec<u8> {
        let name = trimmed(self.field(0, 100));
        // GNU's own format has other fields there.
        let prefix = if self.field(257, 6) == b"ustar\0" { trimmed(self.field(345, 155)) } else { b"" };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    pub(super) fn link(&self) -> Vec<u8> {
        trimmed(self.field(157, 100)).to_vec()
    }

    pub(super) fn mode(&self) -> Option<u64> {
        number(self.field(100, 8))
    }

    pub(super) fn uid(&self) -> Option<u64> {
        number(self.field(108, 8))
    }

    pub(super) fn gid(&self) -> Option<u64> {
        number(self.field(116, 8))
    }

    pub(super) fn size(&self) -> Option<u64> {
        number(self.field(124, 12))
    }

    /// Seconds, which may be before 1970.
    pub(super) fn modified(&self) -> Option<i64> {
        let field = self.field(136, 12);
        if field[0] == 0xff {
            return field[4..].try_into().ok().map(i64::from_be_bytes).filter(|seconds| *seconds < 0);
        }
        number(field).and_then(|seconds| i64::try_from(seconds).ok())
    }

    /// The map of GNU's own sparse files, and whether more blocks of it follow.
    pub(super) fn sparse(&self) -> Result<(Sparse, bool), &'static str> {
        let size = number(self.field(483, 12)).ok_or("a sparse file without a size")?;
        let mut sparse = Sparse::new(size);
        sparse.add_all(&self.0[386..482])?;
        Ok((sparse, self.0[482] != 0))
    }

    fn field(&self, start: usize, length: usize) -> &[u8] {
        &self.0[start..start + length]
    }
}

impl Sparse {
    /// Adds one more block of a map; whether another one follows.
    pub(super) fn extend(&mut self, bytes: &[u8; BLOCK]) -> Result<bool, &'static str> {
        self.add_all(&bytes[..504])?;
        Ok(bytes[504] != 0)
    }

    fn add_all(&mut self, pairs: &[u8]) -> Result<(), &'static str> {
        for pair in pairs.chunks_exact(24) {
            if pair[0] == 0 {
                break;
            }
            let (Some(offset), Some(length)) = (number(&pair[..12]), number(&pair[12..])) else {
                return Err("a map of a sparse file that is no list of numbers");
            };
            self.add(Segment { offset, length })?;
        }
        Ok(())
    }
}

/// `None`: no number, negative, or more than 64 bits.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        // Base 256. The next bit is the sign.
        let first = field[0] & 0x7f;
        if first & 0x40 != 0 {
            return None;
        }
        return field[1..]
            .iter()
            .try_fold(u64::from(first), |sum, byte| sum.checked_mul(256)?.checked_add(u64::from(*byte)));
    }
    let digits = trimmed(field).trim_ascii();
    digits.iter().try_fold(0u64, |sum, digit| match digit {
        b'0'..=b'7' => sum.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

fn trimmed(field: &[u8]) -> &[u8] {
    &field[..field.iter().position(|byte| *byte == 0).unwrap_or(field.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256_and_nothing_else() {
        let check = |field: &[u8], expected: Option<u64>| assert_eq!(number(field), expected, "{field:?}");
        check(b"0000644\0", Some(0o644));
        check(b"   644 \0", Some(0o644));
        check(b"\0\0\0\0\0\0\0\0", Some(0));
        check(b"77777777777 ", Some(0o77777777777));
        check(&[0x80, 0, 0, 0, 0, 0, 1, 0], Some(256));
        check(&[0x80, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255], Some(u64::MAX));
        check(&[0x80, 0, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255], None);
        check(&[0xff; 12], None);
        check(b"-0000001\0\0\0\0", None);
        check(b"0000009\0", None);
        check(b"+1\0\0\0\0\0\0", None);
    }
}
