//! Writes tar archives in pax format, such as [`super::Archive`] reads: with exact times, owners, attributes and holes.
//!
//! The same entries give the same bytes. A set-id bit is in no header that another program acts on, so that none becomes a file of the host's;
//! a record of our own has it for us.

use std::io::{self, Write};

use super::header::BLOCK;
use super::pax::{ATTRIBUTES_MAX, MODE};
use super::sparse::Segment;
use super::{Entry, Kind};

const NAME_LEN: usize = 100;
/// The largest numbers of seven and eleven octal digits.
const ID_MAX: u64 = 0o7_777_777;
const SIZE_MAX: u64 = 0o77_777_777_777;
const SET_IDS: u32 = 0o6000;

/// An archive that is being written.
pub(crate) struct Packer<W> {
    out: W,
    padding: usize,
}

impl<W: Write> Packer<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, padding: 0 }
    }

    /// Begins an entry. The data of its segments, or of the whole file, follows by [`Self::data`], all of it.
    pub(crate) fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        self.fill()?;
        let (flag, target, data) = match &entry.kind {
            Kind::File { size, segments: None } => (b'0', &b""[..], *size),
            Kind::File { segments: Some(segments), .. } => {
                (b'0', &b""[..], segments.iter().map(|segment| segment.length).sum())
            }
            Kind::HardLink { target } => (b'1', target.as_slice(), 0),
            Kind::Link { target } => (b'2', target.as_slice(), 0),
            Kind::Directory => (b'5', &b""[..], 0),
            Kind::Fifo => (b'6', &b""[..], 0),
            Kind::Device => return Err(io::Error::other("an archive of ours has no devices")),
        };
        let map = match &entry.kind {
            Kind::File { segments: Some(segments), .. } => map_of(segments),
            _ => Vec::new(),
        };
        let size = data + map.len() as u64;
        let records = records(entry, target, size);
        if !records.is_empty() {
            let described = Fields { name: b"pax", size: records.len() as u64, flag: b'x', ..Fields::default() };
            self.out.write_all(&header(&described))?;
            self.out.write_all(&records)?;
            self.padding = padding(records.len() as u64);
            self.fill()?;
        }
        let fields = Fields {
            name: &entry.path,
            link: target,
            mode: entry.mode & !SET_IDS,
            uid: entry.uid,
            gid: entry.gid,
            size,
            modified: entry.modified.0,
            flag,
        };
        self.out.write_all(&header(&fields))?;
        self.out.write_all(&map)?;
        self.padding = padding(size);
        Ok(())
    }

    pub(crate) fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    /// Ends the archive, and gives back what it was written to.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.fill()?;
        self.out.write_all(&[0; 2 * BLOCK])?;
        Ok(self.out)
    }

    fn fill(&mut self) -> io::Result<()> {
        let padding = std::mem::take(&mut self.padding);
        self.out.write_all(&[0; BLOCK][..padding])
    }
}

fn padding(size: u64) -> usize {
    (size.wrapping_neg() % BLOCK as u64) as usize
}

/// What a header has no room for.
fn records(entry: &Entry, target: &[u8], size: u64) -> Vec<u8> {
    debug_assert!(entry.attributes.len() <= ATTRIBUTES_MAX, "no reader takes more");
    let mut records = Vec::new();
    let mut add = |key: &[u8], value: &[u8]| record(&mut records, key, value);
    let sparse = match &entry.kind {
        Kind::File { size, segments: Some(_) } => Some(*size),
        _ => None,
    };
    if let Some(whole) = sparse {
        add(b"GNU.sparse.major", b"1");
        add(b"GNU.sparse.minor", b"0");
        add(b"GNU.sparse.name", &entry.path);
        add(b"GNU.sparse.realsize", whole.to_string().as_bytes());
    } else if entry.path.len() > NAME_LEN {
        add(b"path", &entry.path);
    }
    if target.len() > NAME_LEN {
        add(b"linkpath", target);
    }
    for (key, number, max) in [(&b"size"[..], size, SIZE_MAX), (b"uid", entry.uid, ID_MAX), (b"gid", entry.gid, ID_MAX)]
    {
        if number > max {
            add(key, number.to_string().as_bytes());
        }
    }
    let (seconds, nanos) = entry.modified;
    if nanos != 0 || !(0..=SIZE_MAX as i64).contains(&seconds) {
        add(b"mtime", time(seconds, nanos).as_bytes());
    }
    if entry.mode & SET_IDS != 0 {
        add(MODE, entry.mode.to_string().as_bytes());
    }
    for (name, value) in &entry.attributes {
        add(&[b"SCHILY.xattr.", name.as_slice()].concat(), value);
    }
    records
}

/// `LENGTH KEY=VALUE\n`, where the length includes its own digits.
fn record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let with = |digits: usize| (rest + digits, (rest + digits).to_string());
    let (_, text) = (1..20).map(with).find(|(length, text)| rest + text.len() == *length).expect("lengths are short");
    for part in [text.as_bytes(), b" ", key, b"=", value, b"\n"] {
        out.extend_from_slice(part);
    }
}

fn time(seconds: i64, nanos: u32) -> String {
    match (seconds < 0, nanos) {
        (_, 0) => seconds.to_string(),
        (false, nanos) => format!("{seconds}.{nanos:09}"),
        // Nanoseconds count forwards, and a fraction away from zero.
        (true, nanos) => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanos),
    }
}

/// Where the data lies, in blocks before it: a count, then offsets and lengths, each on a line.
fn map_of(segments: &[Segment]) -> Vec<u8> {
    let mut map = format!("{}\n", segments.len());
    for Segment { offset, length } in segments {
        map.push_str(&format!("{offset}\n{length}\n"));
    }
    let mut map = map.into_bytes();
    map.resize(map.len() + padding(map.len() as u64), 0);
    map
}

#[derive(Default)]
struct Fields<'a> {
    name: &'a [u8],
    link: &'a [u8],
    mode: u32,
    uid: u64,
    gid: u64,
    size: u64,
    modified: i64,
    flag: u8,
}

/// What doesn't fit is cut: a record before it says it in full.
fn header(fields: &Fields<'_>) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    for (at, text) in [(0, fields.name), (157, fields.link)] {
        let text = &text[..text.len().min(NAME_LEN)];
        block[at..at + text.len()].copy_from_slice(text);
    }
    let modified = u64::try_from(fields.modified).unwrap_or(0).min(SIZE_MAX);
    for (at, digits, number) in [
        (100, 7, u64::from(fields.mode & 0o7777)),
        (108, 7, fields.uid.min(ID_MAX)),
        (116, 7, fields.gid.min(ID_MAX)),
        (124, 11, fields.size.min(SIZE_MAX)),
        (136, 11, modified),
    ] {
        block[at..at + digits].copy_from_slice(format!("{number:0digits$o}").as_bytes());
    }
    block[156] = fields.flag;
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::super::{Archive, Input};
    use super::*;

    impl Input for &[u8] {}

    fn entry(path: &[u8], kind: Kind) -> Entry {
        Entry {
            path: path.to_vec(),
            kind,
            mode: 0o644,
            uid: 0,
            gid: 0,
            modified: (1_700_000_000, 0),
            attributes: Vec::new(),
            attributes_unread: 0,
        }
    }

    #[test]
    fn every_entry_reads_back_as_it_was() {
        let long = vec![b'n'; 300];
        let data = |size| Kind::File { size, segments: None };
        let parts = vec![Segment { offset: 4096, length: 3 }, Segment { offset: 1 << 40, length: 600 }];
        let sparse = Kind::File { size: (1 << 40) + 4096, segments: Some(parts) };
        let entries = [
            entry(b".", Kind::Directory),
            entry(&long, data(0)),
            Entry { mode: 0o6755, modified: (-2, 750_000_000), ..entry(b"set-ids", data(513)) },
            Entry { uid: 3_000_000, gid: 2_097_152, modified: (-7, 0), ..entry(b"far", data(1)) },
            Entry { modified: (1 << 40, 1), ..entry(b"link", Kind::Link { target: long.clone() }) },
            entry(b"hard", Kind::HardLink { target: b"far".to_vec() }),
            entry(b"pipe\n", Kind::Fifo),
            Entry {
                attributes: vec![(b"user.a".to_vec(), b"\0=\n".to_vec()), (b"user.b".to_vec(), vec![7; 990])],
                ..entry(b"sparse", sparse)
            },
            entry(b"nothing but holes", Kind::File { size: 99, segments: Some(Vec::new()) }),
        ];
        let mut packer = Packer::new(Vec::new());
        for entry in &entries {
            packer.entry(entry).unwrap();
            let Kind::File { size, segments } = &entry.kind else { continue };
            let count = segments.as_ref().map_or(*size, |all| all.iter().map(|part| part.length).sum());
            packer.data(&vec![b'x'; count as usize]).unwrap();
        }
        let written = packer.finish().unwrap();
        assert!(!written.windows(8).any(|bytes| bytes == b"0006755\0"), "no header has a set-id bit");
        let mut archive = Archive::new(written.as_slice());
        for entry in &entries {
            assert_eq!(archive.next().unwrap().as_ref(), Some(entry));
        }
        assert_eq!(archive.next().unwrap(), None);
    }

    #[test]
    fn lengths_of_records_count_themselves() {
        for length in [0, 1, 3, 85, 86, 87, 88, 980, 990, 991, 992, 5000] {
            let mut text = Vec::new();
            record(&mut text, b"path", &vec![b'x'; length]);
            let said: usize =
                text.split(|byte| *byte == b' ').next().map(String::from_utf8_lossy).unwrap().parse().unwrap();
            assert_eq!(said, text.len(), "{length}");
        }
    }
}
