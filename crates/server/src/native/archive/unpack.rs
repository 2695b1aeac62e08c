//! Reading an archive as it comes.
//!
//! INVARIANT: an item's path is relative, has no `..` and no empty part, and its parents are no links of the same archive; no two items
//! but directories have the same path.

use std::collections::HashSet;

use bytes::{Buf, Bytes, BytesMut};
use sha2::{Digest, Sha256};

use super::header::{self, BLOCK, Flag, Header};
use super::{ArchiveError, ENTRIES_MAX, pax, shown};

/// Longest extended header: names and links, not much more than their longest.
const EXTENDED_MAX: u64 = 64 * 1024;
/// Longest path, as the kernel has it.
const PATH_MAX: usize = 4095;
/// Longest part of a path.
const NAME_MAX: usize = 255;
/// Most directories above an entry.
const DEPTH_MAX: usize = 256;

/// Something to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// Make it, or find it.
    Directory {
        path: Vec<u8>,
        mode: u32,
    },
    /// Begin it; its content follows.
    File {
        path: Vec<u8>,
        mode: u32,
        size: u64,
    },
    Data(Bytes),
    /// The file is whole.
    FileEnd,
    Link {
        path: Vec<u8>,
        target: Vec<u8>,
    },
}

/// Reads an archive.
#[derive(Debug)]
pub(crate) struct Unpacker {
    waiting: BytesMut,
    part: Part,
    entries: u64,
    bytes: u64,
    bytes_max: u64,
    entries_max: u64,
    /// What the next entry is called, where its header has no room.
    next: pax::Extended,
    seen: HashSet<[u8; 16]>,
    links: HashSet<[u8; 16]>,
}

/// What is expected next.
#[derive(Debug)]
enum Part {
    Header,
    Content { left: u64, padding: usize },
    Extra { header: Header },
    Padding { left: usize },
    End,
}

impl Unpacker {
    /// Takes at most so many bytes of files.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self::with_entries(bytes_max, ENTRIES_MAX)
    }

    fn with_entries(bytes_max: u64, entries_max: u64) -> Self {
        Self {
            waiting: BytesMut::new(),
            part: Part::Header,
            entries: 0,
            bytes: 0,
            bytes_max,
            entries_max,
            next: pax::Extended::default(),
            seen: HashSet::new(),
            links: HashSet::new(),
        }
    }

    /// More of the archive. Everything of the last must have been taken with [`Unpacker::next`].
    pub(crate) fn push(&mut self, piece: Bytes) {
        if self.waiting.is_empty() {
            self.waiting = piece.try_into_mut().unwrap_or_else(|piece| BytesMut::from(&piece[..]));
        } else {
            self.waiting.extend_from_slice(&piece);
        }
    }

    /// What is to be done next; `None` when more must come.
    pub(crate) fn next(&mut self) -> Result<Option<Item>, ArchiveError> {
        loop {
            match &mut self.part {
                Part::Header => {
                    if self.waiting.len() < BLOCK {
                        return Ok(None);
                    }
                    let block: [u8; BLOCK] = self.waiting[..BLOCK].try_into().expect("as long as a block");
                    self.waiting.advance(BLOCK);
                    match header::read(&block)? {
                        None => self.part = Part::End,
                        Some(header) => {
                            if let Some(item) = self.begin(header)? {
                                return Ok(Some(item));
                            }
                        }
                    }
                }
                Part::Content { left: 0, padding } => {
                    self.part = Part::Padding { left: *padding };
                    return Ok(Some(Item::FileEnd));
                }
                Part::Content { left, .. } => {
                    if self.waiting.is_empty() {
                        return Ok(None);
                    }
                    let length = self.waiting.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= length as u64;
                    return Ok(Some(Item::Data(self.waiting.split_to(length).freeze())));
                }
                Part::Extra { header } => {
                    let size = header.size as usize;
                    if self.waiting.len() < size {
                        return Ok(None);
                    }
                    let text = self.waiting.split_to(size);
                    let padding = padding(size as u64);
                    let flag = header.flag;
                    self.extra(flag, &text)?;
                    self.part = Part::Padding { left: padding };
                }
                Part::Padding { left } => {
                    let length = self.waiting.len().min(*left);
                    self.waiting.advance(length);
                    *left -= length;
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.part = Part::Header;
                }
                Part::End => {
                    // Whatever fills the last record.
                    self.waiting.clear();
                    return Ok(None);
                }
            }
        }
    }

    /// That was all; an archive that stops within an entry is damaged.
    pub(crate) fn finish(&self) -> Result<(), ArchiveError> {
        let is_between = match &self.part {
            Part::End => true,
            Part::Header => self.waiting.is_empty() && self.entries > 0,
            Part::Padding { .. } | Part::Content { .. } | Part::Extra { .. } => false,
        };
        if is_between { Ok(()) } else { Err(ArchiveError::Damaged("it is cut off, or no tar archive")) }
    }

    fn begin(&mut self, mut header: Header) -> Result<Option<Item>, ArchiveError> {
        self.entries += 1;
        if self.entries > self.entries_max {
            return Err(ArchiveError::TooLarge(format!("more than {} entries", self.entries_max)));
        }
        match header.flag {
            Flag::Extended | Flag::Global | Flag::LongName | Flag::LongLink => {
                if header.size > EXTENDED_MAX {
                    return Err(ArchiveError::Damaged("an extended header is too long"));
                }
                self.part = Part::Extra { header };
                return Ok(None);
            }
            Flag::File | Flag::Directory | Flag::SymbolicLink | Flag::HardLink | Flag::Other => {}
        }
        let next = std::mem::take(&mut self.next);
        header.name = next.path.unwrap_or(header.name);
        header.link = next.link.unwrap_or(header.link);
        header.size = next.size.unwrap_or(header.size);
        self.entry(header)
    }

    fn entry(&mut self, header: Header) -> Result<Option<Item>, ArchiveError> {
        let refuse = |why| Err(ArchiveError::entry(&header.name, why));
        let path = clean(&header.name)?;
        let is_directory = header.flag == Flag::Directory;
        if path.is_empty() {
            // The directory itself, which is there already.
            return if is_directory { self.skip(header.size) } else { refuse("it has no name") };
        }
        for (at, _) in path.iter().enumerate().filter(|(_, byte)| **byte == b'/') {
            if self.links.contains(&fingerprint(&path[..at])) {
                return refuse("it goes through a link of the same archive");
            }
        }
        let is_first = self.seen.insert(fingerprint(&path));
        // Archives name directories as often as they like; that is harmless where it is one.
        let may_repeat = is_directory && !self.links.contains(&fingerprint(&path));
        if !is_first && !may_repeat {
            return refuse("its name was there before");
        }
        match header.flag {
            Flag::Directory => {
                self.skip(header.size)?;
                Ok(Some(Item::Directory { path, mode: header.mode }))
            }
            Flag::SymbolicLink => {
                if header.link.is_empty() || header.link.len() > PATH_MAX || header.link.contains(&0) {
                    return refuse("it points nowhere");
                }
                self.skip(header.size)?;
                self.links.insert(fingerprint(&path));
                Ok(Some(Item::Link { path, target: header.link }))
            }
            Flag::File => {
                self.bytes = self.bytes.saturating_add(header.size);
                if self.bytes > self.bytes_max {
                    return Err(ArchiveError::TooLarge(format!("more than {} bytes of files", self.bytes_max)));
                }
                self.part = Part::Content { left: header.size, padding: padding(header.size) };
                Ok(Some(Item::File { path, mode: header.mode, size: header.size }))
            }
            Flag::HardLink => refuse("it is a hard link; make the archive with --hard-dereference"),
            Flag::Other => refuse("it is a device, a pipe or a sparse file"),
            Flag::Extended | Flag::Global | Flag::LongName | Flag::LongLink => {
                Err(ArchiveError::Damaged("an extended header where an entry should be"))
            }
        }
    }

    /// An entry without content. One that has some all the same is a trick.
    fn skip(&mut self, size: u64) -> Result<Option<Item>, ArchiveError> {
        if size > 0 {
            return Err(ArchiveError::Damaged("a directory or a link with content"));
        }
        self.part = Part::Header;
        Ok(None)
    }

    fn extra(&mut self, flag: Flag, text: &[u8]) -> Result<(), ArchiveError> {
        let name = || text.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
        match flag {
            Flag::Extended => {
                let extended = pax::read(text)?;
                self.next.path = extended.path.or(self.next.path.take());
                self.next.link = extended.link.or(self.next.link.take());
                self.next.size = extended.size.or(self.next.size);
            }
            Flag::LongName => self.next.path = Some(name()),
            Flag::LongLink => self.next.link = Some(name()),
            // About everything that follows, which nobody uses for names.
            Flag::Global => {
                pax::read(text)?;
            }
            Flag::File | Flag::Directory | Flag::SymbolicLink | Flag::HardLink | Flag::Other => {}
        }
        Ok(())
    }
}

/// A name as a path below the directory: `./a//b/` is `a/b`.
fn clean(name: &[u8]) -> Result<Vec<u8>, ArchiveError> {
    if name.contains(&0) {
        return Err(ArchiveError::entry(name, "its name has a NUL byte"));
    }
    if name.starts_with(b"/") {
        return Err(ArchiveError::Outside { name: shown(name) });
    }
    let mut path = Vec::with_capacity(name.len());
    let mut depth = 0;
    for part in name.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if part == b".." {
            return Err(ArchiveError::Outside { name: shown(name) });
        }
        if part.len() > NAME_MAX {
            return Err(ArchiveError::entry(name, "a part of its name is too long"));
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(part);
        depth += 1;
    }
    if path.len() > PATH_MAX || depth > DEPTH_MAX {
        return Err(ArchiveError::entry(name, "its name is too long, or too deep"));
    }
    Ok(path)
}

fn padding(size: u64) -> usize {
    ((BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64) as usize
}

/// Remembers a path in sixteen bytes, however long it is.
fn fingerprint(path: &[u8]) -> [u8; 16] {
    let digest = Sha256::digest(path);
    digest[..16].try_into().expect("a digest is longer")
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, Packed, end_of_archive, entry};
    use super::*;

    fn packed<'a>(path: &'a [u8], kind: Kind, size: u64, target: &'a [u8]) -> Vec<u8> {
        entry(&Packed { path, kind, mode: 0o644, uid: 0, gid: 0, size, modified: 0, target })
    }

    fn file(path: &[u8], content: &[u8]) -> Vec<u8> {
        let mut out = packed(path, Kind::File, content.len() as u64, b"");
        out.extend_from_slice(content);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
        out
    }

    fn read(archive: &[u8], piece: usize) -> Result<Vec<Item>, ArchiveError> {
        let mut unpacker = Unpacker::new(1 << 20);
        let mut items: Vec<Item> = Vec::new();
        for piece in archive.chunks(piece) {
            unpacker.push(Bytes::copy_from_slice(piece));
            while let Some(item) = unpacker.next()? {
                // How content is cut is not what this is about.
                match (items.last_mut(), item) {
                    (Some(Item::Data(before)), Item::Data(more)) => *before = [&before[..], &more].concat().into(),
                    (_, item) => items.push(item),
                }
            }
        }
        unpacker.finish()?;
        Ok(items)
    }

    #[test]
    fn what_was_packed_comes_out_however_it_is_cut() {
        let long = [&b"d/"[..], &[b'n'; 200]].concat();
        let archive = [
            packed(b"./", Kind::Directory, 0, b""),
            packed(b"d", Kind::Directory, 0, b""),
            file(&long, b"hello"),
            file(b"empty", b""),
            packed(b"link", Kind::Link, 0, &[b't'; 150]),
            end_of_archive().to_vec(),
        ]
        .concat();
        let expected = [
            Item::Directory { path: b"d".to_vec(), mode: 0o644 },
            Item::File { path: long, mode: 0o644, size: 5 },
            Item::Data(Bytes::from_static(b"hello")),
            Item::FileEnd,
            Item::File { path: b"empty".to_vec(), mode: 0o644, size: 0 },
            Item::FileEnd,
            Item::Link { path: b"link".to_vec(), target: vec![b't'; 150] },
        ];
        for piece in [1, 100, 511, 512, 1 << 16] {
            assert_eq!(read(&archive, piece).unwrap(), expected, "{piece}");
        }
    }

    #[test]
    fn hostile_entries_are_refused() {
        let device = {
            let mut block: [u8; BLOCK] = packed(b"dev", Kind::File, 0, b"").try_into().unwrap();
            block[156] = b'3';
            let sum: u64 = block
                .iter()
                .enumerate()
                .map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u64::from(*byte) })
                .sum();
            block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
            block.to_vec()
        };
        let through = [packed(b"l", Kind::Link, 0, b"/etc"), file(b"l/passwd", b"x")].concat();
        let twice = [file(b"a", b"1"), file(b"./a", b"2")].concat();
        let replaced = [packed(b"l", Kind::Link, 0, b"/etc"), packed(b"l", Kind::Directory, 0, b"")].concat();
        for (what, archive) in [
            ("above", file(b"../../etc/passwd", b"x")),
            ("above, inside", file(b"a/../../b", b"x")),
            ("absolute", file(b"/etc/passwd", b"x")),
            ("through a link", through),
            ("twice", twice),
            ("a link that becomes a directory", replaced),
            ("a device", device),
            ("too large", packed(b"big", Kind::File, 2 << 20, b"")),
            ("cut off", file(b"a", b"hello")[..BLOCK + 3].to_vec()),
            ("no archive", vec![b'x'; 2048]),
            ("nothing", Vec::new()),
        ] {
            assert!(read(&archive, 1000).is_err(), "{what}");
        }
    }

    #[test]
    fn there_are_only_so_many_entries() {
        let mut unpacker = Unpacker::with_entries(1 << 20, 100);
        let taken = (0..200).take_while(|index| {
            unpacker.push(packed(index.to_string().as_bytes(), Kind::Directory, 0, b"").into());
            unpacker.next().is_ok()
        });
        assert_eq!(taken.count(), 100);
    }

    #[test]
    fn odd_names_stay_what_they_are() {
        for name in ["..\\x", "%2e%2e%2f", "....", "a b", "．．", "..."] {
            let items = read(&file(name.as_bytes(), b""), 512).unwrap();
            assert_eq!(items[0], Item::File { path: name.as_bytes().to_vec(), mode: 0o644, size: 0 });
        }
    }
}
