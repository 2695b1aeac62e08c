//! A cursor over bytes from a hostile peer. Reading past the end is `None`, never a panic.

/// Reads big-endian values off the front of a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    pub fn u8(&mut self) -> Option<u8> {
        Some(self.take(1)?[0])
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.take(2)?.try_into().ok().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    /// Bytes after a length of one byte.
    pub fn vector8(&mut self) -> Option<&'a [u8]> {
        let length = self.u8()?;
        self.take(length.into())
    }

    /// Bytes after a length of two bytes.
    pub fn vector16(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }
}

#[cfg(test)]
mod tests {
    use super::Cursor;

    #[test]
    fn a_length_beyond_the_end_reads_nothing() {
        assert_eq!(Cursor::new(&[3, 1, 2]).vector8(), None);
        assert_eq!(Cursor::new(&[0, 3, 1, 2]).vector16(), None);
        assert_eq!(Cursor::new(&[9]).u16(), None);
        assert_eq!(Cursor::new(&[9, 9, 9]).u32(), None);
    }

    #[test]
    fn values_are_big_endian_and_consumed_in_order() {
        let mut cursor = Cursor::new(&[1, 0, 2, 0, 0, 0, 3, 1, 7]);
        assert_eq!((cursor.u8(), cursor.u16(), cursor.u32()), (Some(1), Some(2), Some(3)));
        assert_eq!(cursor.vector8(), Some(&[7][..]));
        assert!(cursor.is_empty());
    }
}
