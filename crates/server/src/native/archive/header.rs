//! One header of a tar archive: 512 bytes, by POSIX (ustar) and GNU's additions as far as everybody uses them.

use super::ArchiveError;

/// The size of a header, and what everything in an archive is a multiple of.
pub(super) const BLOCK: usize = 512;

/// What an entry is, as its header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flag {
    File,
    Directory,
    SymbolicLink,
    HardLink,
    /// Says more about the entry after it.
    Extended,
    /// Says more about everything after it.
    Global,
    /// GNU: the next entry's name, which didn't fit.
    LongName,
    /// GNU: where the next entry points to, which didn't fit.
    LongLink,
    /// Devices, pipes, sparse files, parts of several volumes, and what nobody knows.
    Other,
}

/// What a header says.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub(super) name: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) mode: u32,
    pub(super) size: u64,
    pub(super) flag: Flag,
}

/// Reads a header; `None` for a block of zeros, which ends an archive.
pub(super) fn read(block: &[u8; BLOCK]) -> Result<Option<Header>, ArchiveError> {
    if block.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let claimed = number(&block[148..156]).ok_or(ArchiveError::Damaged("a header has no checksum"))?;
    // The checksum counts itself as spaces.
    let sum: u64 =
        block.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u64::from(*byte) }).sum();
    if claimed != sum {
        return Err(ArchiveError::Damaged("a header's checksum is wrong"));
    }
    let mut name = text(&block[..100]).to_vec();
    let prefix = text(&block[345..500]);
    // GNU's own format has times where POSIX has the beginning of the name.
    if &block[257..263] == b"ustar\0" && !prefix.is_empty() {
        name = [prefix, b"/", &name].concat();
    }
    let size = number(&block[124..136]).ok_or_else(|| ArchiveError::entry(&name, "its size is not a number"))?;
    let mode = number(&block[100..108]).unwrap_or(0o644);
    let flag = match block[156] {
        b'0' | 0 | b'7' if name.ends_with(b"/") => Flag::Directory,
        b'0' | 0 | b'7' => Flag::File,
        b'1' => Flag::HardLink,
        b'2' => Flag::SymbolicLink,
        b'5' => Flag::Directory,
        b'x' => Flag::Extended,
        b'g' => Flag::Global,
        b'L' => Flag::LongName,
        b'K' => Flag::LongLink,
        _ => Flag::Other,
    };
    Ok(Some(Header { name, link: text(&block[157..257]).to_vec(), mode: (mode & 0o777) as u32, size, flag }))
}

/// What is to be written into a header. The name and the link must fit: 100 bytes each.
pub(super) struct Fields<'a> {
    pub(super) name: &'a [u8],
    pub(super) link: &'a [u8],
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    pub(super) modified: u64,
    pub(super) flag: u8,
}

/// Longest name or link in a header.
pub(super) const NAME_LEN: usize = 100;
/// Largest size that eleven octal digits hold.
pub(super) const SIZE_MAX: u64 = 0o77_777_777_777;
/// Largest owner that seven octal digits hold.
const ID_MAX: u32 = 0o7_777_777;

/// Writes a header.
pub(super) fn write(fields: &Fields<'_>) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let cut = |bytes: &[u8]| bytes.len().min(NAME_LEN);
    block[..cut(fields.name)].copy_from_slice(&fields.name[..cut(fields.name)]);
    octal(&mut block[100..108], u64::from(fields.mode & 0o7777));
    octal(&mut block[108..116], u64::from(fields.uid.min(ID_MAX)));
    octal(&mut block[116..124], u64::from(fields.gid.min(ID_MAX)));
    octal(&mut block[124..136], fields.size.min(SIZE_MAX));
    octal(&mut block[136..148], fields.modified.min(SIZE_MAX));
    block[148..156].fill(b' ');
    block[156] = fields.flag;
    block[157..157 + cut(fields.link)].copy_from_slice(&fields.link[..cut(fields.link)]);
    block[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    octal(&mut block[148..155], sum);
    block[155] = b' ';
    block
}

/// A number in a field, zero-padded, with a NUL after it.
fn octal(field: &mut [u8], value: u64) {
    let digits = format!("{value:0width$o}", width = field.len() - 1);
    field[..digits.len()].copy_from_slice(digits.as_bytes());
    field[digits.len()] = 0;
}

/// A number: octal digits, or GNU's binary for what doesn't fit. `None` for anything else, negative numbers among it.
fn number(field: &[u8]) -> Option<u64> {
    if field[0] & 0x80 != 0 {
        let (high, low) = field.split_at(field.len() - 8);
        let is_small = high[0] == 0x80 && high[1..].iter().all(|byte| *byte == 0);
        return is_small.then(|| low.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)));
    }
    let digits = field.trim_ascii_start();
    let end = digits.iter().position(|byte| matches!(byte, 0 | b' ')).unwrap_or(digits.len());
    let (digits, rest) = digits.split_at(end);
    if digits.is_empty() || !rest.iter().all(|byte| matches!(byte, 0 | b' ')) {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = u64::from(digit.checked_sub(b'0').filter(|digit| *digit < 8)?);
        value.checked_mul(8)?.checked_add(digit)
    })
}

/// What a field holds before its first NUL.
fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    &field[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary_and_never_negative() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"   644 \0"), Some(0o644));
        assert_eq!(number(&[0x80, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]), Some(1 << 32));
        for wrong in [&b"0000-10\0"[..], b"00008\0\0\0", b"\0\0\0\0\0\0\0\0", b"12\x0034\0\0\0", &[0xff; 12]] {
            assert_eq!(number(wrong), None, "{wrong:?}");
        }
        assert_eq!(number(&[0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn a_header_reads_back_and_a_flipped_bit_does_not() {
        let fields = Fields {
            name: b"a/b",
            link: b"",
            mode: 0o640,
            uid: 1000,
            gid: 1000,
            size: 77,
            modified: 1_700_000_000,
            flag: b'0',
        };
        let block = write(&fields);
        let header = read(&block).unwrap().unwrap();
        assert_eq!((&header.name[..], header.mode, header.size, header.flag), (&b"a/b"[..], 0o640, 77, Flag::File));
        for at in 0..BLOCK {
            let mut damaged = block;
            damaged[at] ^= 1;
            assert!(read(&damaged).is_err(), "byte {at}");
        }
        assert!(read(&[0; BLOCK]).unwrap().is_none());
    }
}
