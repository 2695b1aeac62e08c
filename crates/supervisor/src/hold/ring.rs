//! Rings: the newest output of an exec, both streams in order of arrival, and the cursors of its readers.
//!
//! Every byte has a position (counted over both streams) and an offset (counted within its own). A reader that fell
//! behind is told how much of each stream it missed, and never gets a byte twice or out of order.
//!
//! INVARIANT: `kept` is the sum of the chunks' lengths, and it is at most `most` after [`Ring::trim`] with no waiting
//! reader.

use std::collections::VecDeque;

use saggar_domain::OutputStream;

/// Small writes are combined up to this size.
const CHUNK_LEN: usize = 8 * 1024;

#[derive(Debug)]
pub(crate) struct Ring {
    chunks: VecDeque<Chunk>,
    kept: usize,
    most: usize,
    end: u64,
    totals: [u64; 2],
    dropped: [u64; 2],
}

/// Bytes of one stream.
#[derive(Debug)]
struct Chunk {
    stream: OutputStream,
    /// Position of the first byte of `bytes`.
    at: u64,
    /// Offset of the first byte of `bytes`.
    offset: u64,
    bytes: Vec<u8>,
    /// Number of dropped bytes at the front.
    head: usize,
}

/// A reader's progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    at: u64,
    /// The next offset it wants, for each stream.
    next: [u64; 2],
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// This much of a stream is no longer kept.
    Gap {
        stream: OutputStream,
        bytes: u64,
    },
    Bytes {
        stream: OutputStream,
        offset: u64,
        bytes: &'a [u8],
    },
}

impl Ring {
    pub(crate) fn new(most: usize) -> Self {
        Self { chunks: VecDeque::new(), kept: 0, most, end: 0, totals: [0; 2], dropped: [0; 2] }
    }

    /// Appends output. The next [`Ring::trim`] drops what is too much.
    pub(crate) fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        let offset = self.totals[index(stream)];
        match self.chunks.back_mut() {
            Some(last) if last.stream == stream && last.bytes.len() + bytes.len() <= CHUNK_LEN => {
                last.bytes.extend_from_slice(bytes);
            }
            _ => self.chunks.push_back(Chunk { stream, at: self.end, offset, bytes: bytes.to_vec(), head: 0 }),
        }
        self.kept += bytes.len();
        self.end += bytes.len() as u64;
        self.totals[index(stream)] += bytes.len() as u64;
    }

    /// Drops the oldest output beyond the bound, but nothing from position `needed` on.
    pub(crate) fn trim(&mut self, needed: u64) {
        let excess = self.kept.saturating_sub(self.most);
        self.drop_front(excess, needed);
    }

    /// Drops the oldest `count` bytes, but nothing from position `needed` on.
    pub(crate) fn drop_front(&mut self, count: usize, needed: u64) {
        let mut left = count;
        while left > 0
            && let Some(front) = self.chunks.front_mut()
        {
            let start = front.at + front.head as u64;
            let most = usize::try_from(needed.saturating_sub(start)).unwrap_or(usize::MAX);
            let gone = left.min(front.bytes.len() - front.head).min(most);
            if gone == 0 {
                return;
            }
            front.head += gone;
            self.dropped[index(front.stream)] += gone as u64;
            self.kept -= gone;
            left -= gone;
            if front.head == front.bytes.len() {
                self.chunks.pop_front();
            }
        }
        if self.chunks.is_empty() {
            self.chunks = VecDeque::new();
        }
    }

    /// Position of the oldest kept byte.
    pub(crate) fn start(&self) -> u64 {
        self.chunks.front().map_or(self.end, |front| front.at + front.head as u64)
    }

    /// Position of the next byte.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    /// Number of bytes of a stream so far, and how many of them are no longer kept.
    pub(crate) fn counts(&self, stream: OutputStream) -> (u64, u64) {
        (self.totals[index(stream)], self.dropped[index(stream)])
    }

    /// A reader that begins with the oldest kept byte.
    pub(crate) fn oldest(&self) -> Cursor {
        Cursor { at: self.start(), next: self.dropped }
    }

    /// A reader that begins with the next output.
    pub(crate) fn newest(&self) -> Cursor {
        Cursor { at: self.end, next: self.totals }
    }

    /// A reader that already has this much of each stream; `None` if that is more than exists.
    pub(crate) fn after(&self, stdout: u64, stderr: u64) -> Option<Cursor> {
        let next = [stdout, stderr];
        let is_real = next.iter().zip(self.totals).all(|(next, total)| *next <= total);
        is_real.then(|| Cursor { at: self.start(), next })
    }

    /// The next piece for a reader, of at most `most` bytes.
    pub(crate) fn read(&self, cursor: &mut Cursor, most: usize) -> Option<Piece<'_>> {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let (next, dropped) = (&mut cursor.next[index(stream)], self.dropped[index(stream)]);
            if *next < dropped {
                let bytes = dropped - *next;
                *next = dropped;
                return Some(Piece::Gap { stream, bytes });
            }
        }
        cursor.at = cursor.at.max(self.start());
        let mut position = self.chunks.partition_point(|chunk| chunk.at + chunk.bytes.len() as u64 <= cursor.at);
        while let Some(chunk) = self.chunks.get(position) {
            let from = (cursor.at - chunk.at) as usize;
            let offset = chunk.offset + from as u64;
            let next = &mut cursor.next[index(chunk.stream)];
            // The reader already has these.
            let skipped = usize::try_from(next.saturating_sub(offset)).unwrap_or(usize::MAX);
            let skipped = skipped.min(chunk.bytes.len() - from);
            cursor.at += skipped as u64;
            let rest = &chunk.bytes[from + skipped..];
            if !rest.is_empty() {
                let bytes = &rest[..rest.len().min(most)];
                let offset = offset + skipped as u64;
                cursor.at += bytes.len() as u64;
                *next = offset + bytes.len() as u64;
                return Some(Piece::Bytes { stream: chunk.stream, offset, bytes });
            }
            position += 1;
        }
        None
    }

    /// The end of a stream, at most `most` bytes.
    pub(crate) fn tail(&self, stream: OutputStream, most: usize) -> Vec<u8> {
        let mut pieces = Vec::new();
        let mut left = most;
        for chunk in self.chunks.iter().rev().filter(|chunk| chunk.stream == stream) {
            let bytes = &chunk.bytes[chunk.head..];
            let taken = bytes.len().min(left);
            pieces.push(&bytes[bytes.len() - taken..]);
            left -= taken;
        }
        pieces.into_iter().rev().flatten().copied().collect()
    }
}

impl Cursor {
    /// Nothing before this position is needed any more.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }
}

fn index(stream: OutputStream) -> usize {
    match stream {
        OutputStream::Stdout => 0,
        OutputStream::Stderr => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use OutputStream::{Stderr, Stdout};

    fn all(ring: &Ring, cursor: &mut Cursor, most: usize) -> String {
        let mut text = String::new();
        while let Some(piece) = ring.read(cursor, most) {
            match piece {
                Piece::Gap { stream, bytes } => text += &format!("[{stream:?} -{bytes}]"),
                Piece::Bytes { stream, offset, bytes } => {
                    text += &format!("[{stream:?}@{offset} {}]", String::from_utf8_lossy(bytes));
                }
            }
        }
        text
    }

    fn filled(most: usize) -> Ring {
        let mut ring = Ring::new(most);
        for (stream, bytes) in [(Stdout, "abc"), (Stderr, "XY"), (Stdout, "def"), (Stdout, "g"), (Stderr, "Z")] {
            ring.push(stream, bytes.as_bytes());
            ring.trim(u64::MAX);
        }
        ring
    }

    #[test]
    fn both_streams_come_in_the_order_they_arrived_in_whatever_pieces() {
        let ring = filled(100);
        let text = all(&ring, &mut ring.oldest(), 100);
        assert_eq!(text, "[Stdout@0 abc][Stderr@0 XY][Stdout@3 defg][Stderr@2 Z]");
        let text = all(&ring, &mut ring.oldest(), 2);
        assert_eq!(text, "[Stdout@0 ab][Stdout@2 c][Stderr@0 XY][Stdout@3 de][Stdout@5 fg][Stderr@2 Z]");
    }

    #[test]
    fn no_more_is_kept_than_the_bound_and_what_is_missed_is_told() {
        for most in 0..11 {
            let ring = filled(most);
            assert_eq!(ring.kept(), most.min(10));
            let (missed, kept) = (ring.counts(Stdout).1 + ring.counts(Stderr).1, ring.kept() as u64);
            assert_eq!(missed + kept, 10);
        }
        let ring = filled(4);
        assert_eq!(all(&ring, &mut ring.after(0, 0).unwrap(), 100), "[Stdout -4][Stderr -2][Stdout@4 efg][Stderr@2 Z]");
        assert_eq!(all(&ring, &mut ring.oldest(), 100), "[Stdout@4 efg][Stderr@2 Z]");
    }

    #[test]
    fn a_reader_goes_on_after_what_it_has() {
        let ring = filled(100);
        for stdout in 0..=7 {
            for stderr in 0..=3 {
                let mut cursor = ring.after(stdout, stderr).unwrap();
                let mut counts = [stdout, stderr];
                while let Some(piece) = ring.read(&mut cursor, 2) {
                    let Piece::Bytes { stream, offset, bytes } = piece else { panic!("nothing is dropped") };
                    assert_eq!(offset, counts[index(stream)]);
                    counts[index(stream)] += bytes.len() as u64;
                }
                assert_eq!(counts, [7, 3]);
            }
        }
        assert_eq!(ring.after(8, 0), None);
        assert_eq!(all(&ring, &mut ring.newest(), 100), "");
    }

    #[test]
    fn what_someone_still_needs_is_not_dropped() {
        let mut ring = Ring::new(2);
        ring.push(Stdout, b"abcdef");
        ring.trim(1);
        assert_eq!((ring.kept(), ring.start()), (5, 1));
        let mut cursor = ring.oldest();
        ring.push(Stdout, b"gh");
        ring.trim(cursor.at());
        assert_eq!(all(&ring, &mut cursor, 100), "[Stdout@1 bcdefgh]");
        ring.trim(cursor.at());
        assert_eq!((ring.kept(), ring.tail(Stdout, 1)), (2, b"h".to_vec()));
    }

    #[test]
    fn the_tail_is_of_one_stream() {
        let ring = filled(100);
        assert_eq!((ring.tail(Stdout, 5), ring.tail(Stderr, 100)), (b"cdefg".to_vec(), b"XYZ".to_vec()));
    }
}
