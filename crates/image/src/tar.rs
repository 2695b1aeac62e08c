//! Reads tar archives that nobody vouches for: ustar, GNU and pax, with sparse files; and writes our own.
//!
//! Everything that an archive can make grow is bounded before it is read, so the reader needs little memory whatever
//! the archive says. It judges the form alone: whether a name may be used is for the code that writes files.

mod header;
mod pax;
mod sparse;
mod write;

use std::io::{self, Read};

use header::{BLOCK, Block, Flag};
pub(crate) use pax::ATTRIBUTES_MAX;
use pax::Extended;
use sparse::Sparse;
pub(crate) use sparse::{SEGMENTS_MAX, Segment};
pub(crate) use write::Packer;

/// Maximum size of the headers that extend one entry.
const EXTENSION_MAX: u64 = 1 << 20;

/// An archive, read once from its beginning to its end.
pub(crate) struct Archive<R> {
    input: R,
    /// Bytes read or skipped so far.
    position: u64,
    /// Bytes of the current entry's data that are not read.
    data_left: u64,
    /// Fills its last block.
    padding: u64,
    /// Bytes that further headers of the current entry may have.
    extension_left: u64,
    is_at_end: bool,
}

/// What an archive can be read from.
pub(crate) trait Input: Read {
    /// Leaves out bytes; fewer than `count` only at the end of the input.
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        io::copy(&mut self.take(count), &mut io::sink())
    }
}

impl<T: Input + ?Sized> Input for &mut T {
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        (**self).skip(count)
    }
}

/// One entry, before its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// As the archive has it.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    /// Permissions and set-id bits.
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Seconds and nanoseconds since 1970.
    pub(crate) modified: (i64, u32),
    /// Extended attributes, in the archive's order.
    pub(crate) attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// Extended attributes in a form that isn't read.
    pub(crate) attributes_unread: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    File {
        /// Size of the whole file, holes included.
        size: u64,
        /// Where its data lies; `None`: everywhere.
        segments: Option<Vec<Segment>>,
    },
    Directory,
    Link {
        target: Vec<u8>,
    },
    HardLink {
        target: Vec<u8>,
    },
    Fifo,
    Device,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum TarError {
    #[error("the archive is not a valid tar archive: {0} (at byte {1})")]
    Malformed(&'static str, u64),
    #[error("the archive ends in the middle of an entry (at byte {0})")]
    Truncated(u64),
    #[error(transparent)]
    Read(io::Error),
}

impl<R: Input> Archive<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, position: 0, data_left: 0, padding: 0, extension_left: EXTENSION_MAX, is_at_end: false }
    }

    /// Where the data of the current entry begins, if none of it was read.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next entry; `None` at the end of the archive. What is left of the current one is skipped.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>, TarError> {
        self.skip(self.data_left)?;
        // Some writers end with the last byte of data, without filling its block.
        self.position += self.input.skip(self.padding).map_err(TarError::Read)?;
        (self.data_left, self.padding) = (0, 0);
        let mut extended = Extended::default();
        self.extension_left = EXTENSION_MAX;
        loop {
            let Some(block) = self.block()? else { return Ok(None) };
            let size = self.number(block.size())?;
            let padding = size.wrapping_neg() % BLOCK as u64;
            match block.flag() {
                Flag::Pax => extended.read(&self.extension(size, padding)?).map_err(|why| self.malformed(why))?,
                // Defaults for all entries. Image builders use it for a comment, and no reader of images applies it.
                Flag::PaxGlobal => drop(self.extension(size, padding)?),
                Flag::LongName => extended.long_name = Some(text(self.extension(size, padding)?)),
                Flag::LongLink => extended.long_link = Some(text(self.extension(size, padding)?)),
                Flag::Other(flag) => return self.entry(&block, flag, extended).map(Some),
            }
        }
    }

    /// Reads data of the current entry. Data only: holes of a sparse file are not filled in.
    pub(crate) fn data(&mut self, buffer: &mut [u8]) -> Result<usize, TarError> {
        let most = buffer.len().min(usize::try_from(self.data_left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let count = self.input.read(&mut buffer[..most]).map_err(TarError::Read)?;
        if count == 0 {
            return Err(TarError::Truncated(self.position));
        }
        self.position += count as u64;
        self.data_left -= count as u64;
        Ok(count)
    }

    /// Reads whatever follows the end of the archive, and gives the input back.
    pub(crate) fn finish(mut self) -> Result<R, TarError> {
        io::copy(&mut self.input, &mut io::sink()).map_err(TarError::Read)?;
        Ok(self.input)
    }

    fn entry(&mut self, block: &Block, flag: u8, extended: Extended) -> Result<Entry, TarError> {
        let is_gnu_sparse = flag == b'S';
        let size = match extended.size {
            Some(size) => size,
            None => self.number(block.size())?,
        };
        // Links and the like have no data, whatever the size says. Archives of old programs repeat a hard link's size there.
        let has_data = matches!(flag, b'0' | 0 | b'7' | b'S');
        self.data_left = if has_data { size } else { 0 };
        self.padding = self.data_left.wrapping_neg() % BLOCK as u64;
        if !has_data && flag != b'1' && size != 0 {
            return Err(self.malformed("an entry without content has a size"));
        }
        let sparse = if is_gnu_sparse { Some(self.gnu_sparse(block)?) } else { self.pax_sparse(&extended)? };
        let path = extended.path.or(extended.long_name).unwrap_or_else(|| block.path());
        let link = extended.link.or(extended.long_link).unwrap_or_else(|| block.link());
        let kind = match flag {
            // Archives from before ustar mark a directory by its name.
            0 | b'0' if path.ends_with(b"/") && self.data_left == 0 => Kind::Directory,
            0 | b'0' | b'7' | b'S' => match sparse {
                None => Kind::File { size, segments: None },
                Some(sparse) => {
                    sparse.check(self.data_left).map_err(|why| self.malformed(why))?;
                    Kind::File { size: sparse.size, segments: Some(sparse.segments) }
                }
            },
            b'1' => Kind::HardLink { target: link },
            b'2' => Kind::Link { target: link },
            b'3' | b'4' => Kind::Device,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            _ => return Err(self.malformed("an entry of an unknown kind")),
        };
        Ok(Entry {
            path,
            kind,
            mode: (extended.mode.map_or_else(|| self.number(block.mode()), Ok)? & 0o7777) as u32,
            uid: extended.uid.map_or_else(|| self.number(block.uid()), Ok)?,
            gid: extended.gid.map_or_else(|| self.number(block.gid()), Ok)?,
            modified: match extended.modified {
                Some(modified) => modified,
                None => (block.modified().ok_or_else(|| self.malformed("a time that is no number"))?, 0),
            },
            attributes: extended.attributes,
            attributes_unread: extended.attributes_unread,
        })
    }

    /// The next block that isn't the end of the archive. One block of zeroes before other blocks is skipped, as by others.
    fn block(&mut self) -> Result<Option<Block>, TarError> {
        if self.is_at_end {
            return Ok(None);
        }
        for zeroes in 0..2 {
            let mut bytes = [0; BLOCK];
            let count = self.fill(&mut bytes)?;
            // Some writers leave out the end marks.
            if count == 0 {
                break;
            }
            if count < BLOCK {
                return Err(TarError::Truncated(self.position));
            }
            if bytes.iter().all(|byte| *byte == 0) {
                continue;
            }
            if zeroes > 0 {
                return Err(self.malformed("a block of zeroes between entries"));
            }
            return Block::parse(bytes).map(Some).map_err(|why| self.malformed(why));
        }
        self.is_at_end = true;
        Ok(None)
    }

    /// The content of a header that extends the next one.
    fn extension(&mut self, size: u64, padding: u64) -> Result<Vec<u8>, TarError> {
        // With its own block, so that empty headers don't go on forever either.
        self.extension_left = (size.checked_add(BLOCK as u64))
            .and_then(|bytes| self.extension_left.checked_sub(bytes))
            .ok_or_else(|| self.malformed("an entry with extended headers of more than 1 MiB"))?;
        let mut content = vec![0; size as usize];
        if self.fill(&mut content)? < content.len() {
            return Err(TarError::Truncated(self.position));
        }
        self.skip(padding)?;
        Ok(content)
    }

    fn gnu_sparse(&mut self, block: &Block) -> Result<Sparse, TarError> {
        let (mut sparse, mut has_more) = block.sparse().map_err(|why| self.malformed(why))?;
        while has_more {
            let mut bytes = [0; BLOCK];
            if self.fill(&mut bytes)? < BLOCK {
                return Err(TarError::Truncated(self.position));
            }
            has_more = sparse.extend(&bytes).map_err(|why| self.malformed(why))?;
        }
        Ok(sparse)
    }

    /// In the newest form of pax the map comes first in the data, and is no part of the file.
    fn pax_sparse(&mut self, extended: &Extended) -> Result<Option<Sparse>, TarError> {
        let Some(described) = &extended.sparse else { return Ok(None) };
        let Some(size) = described.size else { return Err(self.malformed("a sparse file without a size")) };
        if let Some(map) = &described.map {
            return Sparse::from_map(size, map).map(Some).map_err(|why| self.malformed(why));
        }
        if described.major != Some(1) {
            return Err(self.malformed("a sparse file in a form that isn't known"));
        }
        let mut reader = sparse::MapReader::new(size);
        loop {
            let mut bytes = [0; BLOCK];
            let mut filled = 0;
            while filled < BLOCK {
                match self.data(&mut bytes[filled..])? {
                    0 => return Err(TarError::Truncated(self.position)),
                    count => filled += count,
                }
            }
            if let Some(sparse) = reader.read(&bytes).map_err(|why| self.malformed(why))? {
                return Ok(Some(sparse));
            }
        }
    }

    fn fill(&mut self, buffer: &mut [u8]) -> Result<usize, TarError> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.input.read(&mut buffer[filled..]).map_err(TarError::Read)? {
                0 => break,
                count => filled += count,
            }
        }
        self.position += filled as u64;
        Ok(filled)
    }

    fn skip(&mut self, count: u64) -> Result<(), TarError> {
        let skipped = self.input.skip(count).map_err(TarError::Read)?;
        self.position += skipped;
        if skipped < count { Err(TarError::Truncated(self.position)) } else { Ok(()) }
    }

    fn number(&self, number: Option<u64>) -> Result<u64, TarError> {
        number.ok_or_else(|| self.malformed("a field that is no number, or is negative or too large"))
    }

    fn malformed(&self, why: &'static str) -> TarError {
        TarError::Malformed(why, self.position)
    }
}

/// Up to the first NUL byte, with which GNU ends long names.
fn text(mut content: Vec<u8>) -> Vec<u8> {
    content.truncate(content.iter().position(|byte| *byte == 0).unwrap_or(content.len()));
    content
}
