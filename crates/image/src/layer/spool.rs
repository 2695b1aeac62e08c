//! What was read of a sandbox while it stood still, until it is written as a layer.
//!
//! Creating a file may take a hundred times as long as reading one, and how long depends on the disk's past. So nothing is created while a
//! sandbox stands still: its changes are kept in memory, one after the other, and what is more than that in one file without a name.
//!
//! The form never outlives the process, so it has no version.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, Write};
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, fallocate, openat, unlinkat};
use saggar_domain::Problem;

use super::change::{Change, Facts, Sink, Source};
use super::changes::Found;
use super::content::GoOn;
use super::writer::Writer;
use crate::failure::{about, shown, storage};
use crate::limits::Budget;

/// The most that is in memory. What 100 files of a usual size need several times over.
const MEMORY_MAX: usize = 8 << 20;
/// The name that its file has for a moment.
const FILE: &str = "spool";
/// Read back at once, from a file.
const READ: usize = 256 << 10;
/// After so many bytes their place on the disk is given back, so that a copy needs little more room than its original.
const GIVEN_BACK: u64 = 32 << 20;

const DIRECTORY: u8 = 1;
const WHITEOUT: u8 = 2;
const LINK: u8 = 3;
const FIFO: u8 = 4;
const HARD_LINK: u8 = 5;
const FILE_ENTRY: u8 = 6;
const END: u8 = 0;

/// Takes changes while a sandbox stands still.
pub(crate) struct Spool<'a> {
    /// Where its file is, if one is needed.
    place: BorrowedFd<'a>,
    memory: Vec<u8>,
    file: Option<File>,
}

/// What a spool took, complete.
pub(crate) struct Spooled {
    bytes: Box<dyn Read>,
    found: Found,
}

impl<'a> Spool<'a> {
    /// `place` is a directory that nobody else uses.
    pub(super) fn new(place: BorrowedFd<'a>) -> Self {
        Self { place, memory: Vec::new(), file: None }
    }

    pub(super) fn finish(mut self, found: Found) -> Result<Spooled, Problem> {
        self.number(END.into())?;
        let bytes: Box<dyn Read> = match self.file.take() {
            None => Box::new(Cursor::new(self.memory)),
            Some(mut file) => {
                file.write_all(&self.memory).and_then(|()| file.rewind()).map_err(unwritable)?;
                Box::new(BufReader::with_capacity(READ, Drained { file, at: 0, given_back: 0 }))
            }
        };
        Ok(Spooled { bytes, found })
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        if self.memory.len() + bytes.len() > MEMORY_MAX {
            if self.file.is_none() {
                self.file = Some(nameless(self.place).map_err(unwritable)?);
            }
            if let Some(file) = &mut self.file {
                file.write_all(&self.memory).map_err(unwritable)?;
            }
            self.memory.clear();
        }
        self.memory.extend_from_slice(bytes);
        Ok(())
    }

    fn number(&mut self, number: u64) -> Result<(), Problem> {
        self.bytes(&number.to_le_bytes())
    }

    fn text(&mut self, text: &[u8]) -> Result<(), Problem> {
        self.number(text.len() as u64)?;
        self.bytes(text)
    }

    fn facts(&mut self, facts: &Facts) -> Result<(), Problem> {
        let Facts { mode, uid, gid, modified, attributes } = facts;
        for number in [*mode, *uid, *gid, modified.1] {
            self.number(number.into())?;
        }
        self.bytes(&modified.0.to_le_bytes())?;
        self.number(attributes.len() as u64)?;
        attributes.iter().try_for_each(|(name, value)| self.text(name).and_then(|()| self.text(value)))
    }

    fn piece(&mut self, at: u64, bytes: &[u8]) -> Result<(), Problem> {
        self.number(at)?;
        self.text(bytes)
    }
}

impl Sink for Spool<'_> {
    fn put(&mut self, path: &[u8], change: Change<'_>, _: &mut Budget, go_on: GoOn<'_>) -> Result<(), Problem> {
        let kind = match &change {
            Change::Directory { .. } => DIRECTORY,
            Change::Whiteout => WHITEOUT,
            Change::Link { .. } => LINK,
            Change::Fifo { .. } => FIFO,
            Change::HardLink { .. } => HARD_LINK,
            Change::File { .. } => FILE_ENTRY,
        };
        self.number(kind.into())?;
        self.text(path)?;
        match change {
            Change::Directory { facts, is_opaque } => {
                self.facts(&facts)?;
                self.number(is_opaque.into())
            }
            Change::Whiteout => Ok(()),
            Change::Link { facts, target } => {
                self.facts(&facts)?;
                self.text(&target)
            }
            Change::Fifo { facts } => self.facts(&facts),
            Change::HardLink { first } => self.text(&first),
            Change::File { facts, content } => {
                self.facts(&facts)?;
                self.number(content.size())?;
                content.pieces(go_on, |at, bytes| self.piece(at, bytes))?;
                // The last piece is empty.
                self.piece(0, &[])
            }
        }
    }
}

impl Spooled {
    /// Writes everything as a layer.
    pub(super) fn write(mut self, writer: &mut Writer, budget: &mut Budget, go_on: GoOn<'_>) -> Result<bool, Problem> {
        let mut from = Stored(&mut self.bytes);
        loop {
            go_on()?;
            let kind = from.number().map_err(unreadable)?;
            if kind == u64::from(END) {
                break;
            }
            let path = from.text().map_err(unreadable)?;
            let change = from.change(kind).map_err(unreadable)?;
            change.apply(&path, writer, budget, go_on).map_err(|problem| match path.is_empty() {
                true => problem,
                false => about(&format!("entry {}", shown(&path)), problem),
            })?;
        }
        writer.leave_out(self.found.dropped);
        Ok(self.found.is_changed)
    }
}

/// What is read back.
pub(super) struct Stored<'a>(&'a mut dyn Read);

impl Stored<'_> {
    /// The content of a file, up to its last piece.
    pub(super) fn pieces(&mut self, mut each: impl FnMut(u64, &[u8]) -> Result<(), Problem>) -> Result<(), Problem> {
        loop {
            let at = self.number().map_err(unreadable)?;
            let bytes = self.text().map_err(unreadable)?;
            if bytes.is_empty() {
                return Ok(());
            }
            each(at, &bytes)?;
        }
    }

    fn change(&mut self, kind: u64) -> io::Result<Change<'_>> {
        const UNKNOWN: &str = "an entry of an unknown kind";
        Ok(match u8::try_from(kind).map_err(|_| io::Error::other(UNKNOWN))? {
            DIRECTORY => Change::Directory { facts: self.facts()?, is_opaque: self.number()? == 1 },
            WHITEOUT => Change::Whiteout,
            LINK => Change::Link { facts: self.facts()?, target: self.text()? },
            FIFO => Change::Fifo { facts: self.facts()? },
            HARD_LINK => Change::HardLink { first: self.text()? },
            FILE_ENTRY => {
                let (facts, size) = (self.facts()?, self.number()?);
                Change::File { facts, content: Source::Spooled { from: Stored(&mut *self.0), size } }
            }
            _ => return Err(io::Error::other(UNKNOWN)),
        })
    }

    fn facts(&mut self) -> io::Result<Facts> {
        let (mode, uid, gid, nanos) = (self.number()?, self.number()?, self.number()?, self.number()?);
        let seconds = i64::from_le_bytes(self.array()?);
        let small = |number: u64| u32::try_from(number).map_err(io::Error::other);
        let count = self.number()?;
        let attributes = (0..count).map(|_| Ok((self.text()?, self.text()?))).collect::<io::Result<_>>()?;
        let modified = (seconds, small(nanos)?);
        Ok(Facts { mode: small(mode)?, uid: small(uid)?, gid: small(gid)?, modified, attributes })
    }

    fn number(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> io::Result<Vec<u8>> {
        let length = self.number()?;
        let mut text = Vec::new();
        match (&mut *self.0).take(length).read_to_end(&mut text)? as u64 == length {
            true => Ok(text),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).map(|()| bytes)
    }
}

/// A file of which nothing is left behind what was read.
struct Drained {
    file: File,
    at: u64,
    given_back: u64,
}

impl Read for Drained {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.at += count as u64;
        if self.at - self.given_back >= GIVEN_BACK {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // A file system that can't needs more room meanwhile; everything is given back at the end.
            let _ = fallocate(&self.file, flags, self.given_back, self.at - self.given_back);
            self.given_back = self.at;
        }
        Ok(count)
    }
}

/// Not every file system can make one without a name.
fn nameless(place: BorrowedFd<'_>) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(place, FILE, flags, Mode::from_raw_mode(0o600))?;
    unlinkat(place, FILE, AtFlags::empty())?;
    Ok(file.into())
}

fn unwritable(error: io::Error) -> Problem {
    storage("what the sandbox changed can't be written", error)
}

fn unreadable(error: io::Error) -> Problem {
    storage("what the sandbox changed can't be read back", error)
}
