//! Maps of sparse files: which parts of a file have data. Segments are in order, don't overlap, and end within the file.

use super::header::BLOCK;
use super::pax::decimal;

/// Maximum number of segments of one file.
pub(crate) const SEGMENTS_MAX: usize = 65_536;
const NOT_NUMBERS: &str = "a map of a sparse file that is no list of numbers";

/// A part of a file that has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sparse {
    /// Of the whole file.
    pub(super) size: u64,
    pub(super) segments: Vec<Segment>,
    end: u64,
}

impl Sparse {
    pub(super) fn new(size: u64) -> Self {
        Self { size, segments: Vec::new(), end: 0 }
    }

    pub(super) fn add(&mut self, segment: Segment) -> Result<(), &'static str> {
        if self.segments.len() >= SEGMENTS_MAX {
            return Err("a sparse file with more than 65,536 parts");
        }
        let end = segment.offset.checked_add(segment.length).filter(|end| *end <= self.size);
        let Some(end) = end.filter(|_| segment.offset >= self.end) else {
            return Err("a sparse file whose parts overlap or lie outside");
        };
        self.end = end;
        // Writers mark a hole at the end with an empty segment.
        if segment.length > 0 {
            self.segments.push(segment);
        }
        Ok(())
    }

    /// The map in a header: `OFFSET,LENGTH,OFFSET,LENGTH`.
    pub(super) fn from_map(size: u64, map: &[u8]) -> Result<Self, &'static str> {
        let mut sparse = Self::new(size);
        if map.is_empty() {
            return Ok(sparse);
        }
        let mut numbers = map.split(|byte| *byte == b',').map(|digits| decimal(digits).ok_or(NOT_NUMBERS));
        while let Some(offset) = numbers.next() {
            let length = numbers.next().ok_or(NOT_NUMBERS)?;
            sparse.add(Segment { offset: offset?, length: length? })?;
        }
        Ok(sparse)
    }

    /// Whether the archive has exactly the data that the map names.
    pub(super) fn check(&self, data: u64) -> Result<(), &'static str> {
        let sum = self.segments.iter().fold(0u64, |sum, segment| sum.saturating_add(segment.length));
        if sum == data { Ok(()) } else { Err("a sparse file whose map doesn't match its data") }
    }
}

/// Reads the map at the beginning of a file's data, a block at a time: a count, then offsets and lengths, each on a line.
pub(super) struct MapReader {
    sparse: Sparse,
    digits: Vec<u8>,
    count: Option<u64>,
    offset: Option<u64>,
    read: u64,
}

impl MapReader {
    pub(super) fn new(size: u64) -> Self {
        Self { sparse: Sparse::new(size), digits: Vec::new(), count: None, offset: None, read: 0 }
    }

    /// The map, when this block was its last.
    pub(super) fn read(&mut self, block: &[u8; BLOCK]) -> Result<Option<Sparse>, &'static str> {
        for byte in block {
            if *byte != b'\n' {
                if self.digits.len() >= 20 {
                    return Err(NOT_NUMBERS);
                }
                self.digits.push(*byte);
                continue;
            }
            let number = decimal(&self.digits).ok_or(NOT_NUMBERS)?;
            self.digits.clear();
            match (self.count, self.offset.take()) {
                (None, _) if number > SEGMENTS_MAX as u64 => return Err("a sparse file with more than 65,536 parts"),
                (None, _) => self.count = Some(number),
                (Some(_), None) => self.offset = Some(number),
                (Some(_), Some(offset)) => {
                    self.sparse.add(Segment { offset, length: number })?;
                    self.read += 1;
                }
            }
            // The rest of the block is padding.
            if self.count == Some(self.read) {
                return Ok(Some(self.sparse.clone()));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_must_be_in_order_and_inside_the_file() {
        let parts = |map: &str| Sparse::from_map(100, map.as_bytes()).map(|sparse| sparse.segments.len());
        assert_eq!(parts("0,10,50,50"), Ok(2));
        assert_eq!(parts("0,10,100,0"), Ok(1));
        assert_eq!(parts(""), Ok(0));
        for wrong in ["50,10,0,10", "0,10,5,10", "0,101", "99,2", "18446744073709551615,2", "1", "a,b", "0,1,", "-1,2"]
        {
            assert!(parts(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_map_before_the_data_ends_with_its_last_number() {
        let mut block = [0; BLOCK];
        block[..12].copy_from_slice(b"2\n0\n4\n90\n10\n"[..12].as_ref());
        let sparse = MapReader::new(100).read(&block).unwrap().unwrap();
        assert_eq!(sparse.segments, [Segment { offset: 0, length: 4 }, Segment { offset: 90, length: 10 }]);
        assert!(sparse.check(14).is_ok());
        assert!(sparse.check(15).is_err());
        assert!(MapReader::new(100).read(&[b'1'; BLOCK]).is_err());
    }
}
