//! What an executable asks of its loader: its segments and its entry. Pure; every number comes from a file and is checked before it is used.
//!
//! Only what our own build makes is accepted: a static, position-independent executable of this architecture, none of whose segments is both
//! writable and executable.

/// How much of a program is read for its headers.
pub(crate) const HEADERS_LEN: usize = 4096;
pub(crate) const PAGE: u64 = 4096;

const HEADER_LEN: usize = 64;
const SEGMENT_LEN: usize = 56;
/// Our own programs have about ten.
const SEGMENTS_MAX: usize = 32;
/// A program that needs more address space than this is none of ours.
const SPAN_MAX: u64 = 1 << 32;

const DYNAMIC_EXECUTABLE: u16 = 3;
const LOAD: u32 = 1;
const INTERPRETER: u32 = 3;
const EXECUTABLE: u32 = 1;
const WRITABLE: u32 = 2;
const READABLE: u32 = 4;
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;

/// Why a program can't be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the program in it is too short")]
    Short,
    #[error("the program in it is not an executable of this architecture")]
    NotExecutable,
    #[error("the program in it is not static and position-independent")]
    NotStatic,
    #[error("the headers of the program in it contradict each other")]
    Headers,
}

/// A program to be mapped. Addresses count from where its first page is put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub(crate) segments: Vec<Segment>,
    /// How much address space it takes, in whole pages.
    pub(crate) span: u64,
    pub(crate) entry: u64,
    /// Where its own headers are, and how many.
    pub(crate) headers: u64,
    pub(crate) headers_count: u64,
}

/// INVARIANT: `file_len <= memory_len`; the bytes of the file exist; offset and address are the same within a page; segments ascend and share no
/// page; none is writable and executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) file_len: u64,
    pub(crate) memory_len: u64,
    flags: u32,
}

impl Segment {
    pub(crate) const fn is_readable(&self) -> bool {
        self.flags & READABLE != 0
    }

    pub(crate) const fn is_writable(&self) -> bool {
        self.flags & WRITABLE != 0
    }

    pub(crate) const fn is_executable(&self) -> bool {
        self.flags & EXECUTABLE != 0
    }

    fn holds(&self, address: u64, length: u64) -> bool {
        address >= self.address && address - self.address <= self.file_len.saturating_sub(length)
    }
}

/// The length of each entry, as the headers have to state it.
pub(crate) const HEADER_ENTRY_LEN: u64 = SEGMENT_LEN as u64;

impl Image {
    /// Reads the headers of a program that is `length` bytes long.
    pub(crate) fn parse(headers: &[u8; HEADERS_LEN], length: u64) -> Result<Self, Malformed> {
        let half = |at: usize| u16::from_le_bytes([headers[at], headers[at + 1]]);
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| headers[at + index]));
        // 64 bits, little-endian, version 1.
        if headers[..7] != *b"\x7fELF\x02\x01\x01" || half(18) != MACHINE {
            return Err(Malformed::NotExecutable);
        }
        if half(16) != DYNAMIC_EXECUTABLE {
            return Err(Malformed::NotStatic);
        }
        let (entry, table, count) = (long(24), long(32), usize::from(half(56)));
        let is_bounded = usize::from(half(54)) == SEGMENT_LEN && (1..=SEGMENTS_MAX).contains(&count);
        let begin = usize::try_from(table).ok().filter(|begin| (HEADER_LEN..HEADERS_LEN).contains(begin));
        let (Some(begin), true) = (begin, is_bounded) else { return Err(Malformed::Headers) };
        let table_bytes = headers.get(begin..begin + count * SEGMENT_LEN).ok_or(Malformed::Headers)?;
        let mut segments: Vec<Segment> = Vec::new();
        for entry in table_bytes.chunks_exact(SEGMENT_LEN) {
            match u32::from_le_bytes(std::array::from_fn(|index| entry[index])) {
                INTERPRETER => return Err(Malformed::NotStatic),
                LOAD => segments.push(segment(entry, segments.last(), length)?),
                _ => {}
            }
        }
        let last = segments.last().ok_or(Malformed::Headers)?;
        let span = (last.address + last.memory_len).next_multiple_of(PAGE);
        let is_entry = segments.iter().any(|segment| segment.is_executable() && segment.holds(entry, 1));
        let first = segments.iter().find(|segment| segment.offset <= table);
        let headers_at = first.map(|segment| table - segment.offset + segment.address);
        let is_loaded = |address| segments.iter().any(|segment| segment.holds(address, (count * SEGMENT_LEN) as u64));
        match headers_at {
            Some(address) if is_entry && span <= SPAN_MAX && is_loaded(address) => {
                Ok(Self { segments, span, entry, headers: address, headers_count: count as u64 })
            }
            _ => Err(Malformed::Headers),
        }
    }
}

fn segment(entry: &[u8], before: Option<&Segment>, length: u64) -> Result<Segment, Malformed> {
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| entry[at + index]));
    let flags = u32::from_le_bytes(std::array::from_fn(|index| entry[4 + index]));
    let found = Segment { flags, offset: long(8), address: long(16), file_len: long(32), memory_len: long(40) };
    let free_from = before.map_or(0, |before| (before.address + before.memory_len).next_multiple_of(PAGE));
    let is_in_file = found.offset.checked_add(found.file_len).is_some_and(|end| end <= length);
    let is_in_span = found.address.checked_add(found.memory_len).is_some_and(|end| end <= SPAN_MAX);
    let is_placed = found.offset % PAGE == found.address % PAGE && found.address / PAGE * PAGE >= free_from;
    let is_sized = found.memory_len > 0 && found.file_len <= found.memory_len;
    // What is beyond the file's bytes has to be set to zero.
    let is_kept_apart =
        !(found.is_writable() && found.is_executable()) && (found.is_writable() || found.file_len == found.memory_len);
    if is_in_file && is_in_span && is_placed && is_sized && is_kept_apart { Ok(found) } else { Err(Malformed::Headers) }
}
