//! Checks SQLite's write-ahead log before SQLite reads it.
//!
//! After a crash SQLite reads its log up to the first invalid frame and discards the rest, because it assumes a write
//! that the crash cut off. A flipped bit on the disk looks the same, and would silently discard everything
//! acknowledged since. Two sources tell them apart:
//!
//! - The index beside the log (`-shm`) has the number of committed frames. It isn't durable, but until the host
//!   reboots it is what the processes last saw. Fewer valid frames than that means damage.
//! - Without it: frames are written in order, and each frame's checksum continues from that of the frame before. So a
//!   frame can be verified with the checksum that its predecessor states. A committed transaction after an invalid
//!   frame means damage.
//!
//! Only the last transaction can't be told apart from a write that was cut off, after a power cut.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read};
use std::path::Path;

/// How often the index is read again while live processes change it.
const TRIES_MAX: usize = 20;
const HEADER_LEN: usize = 32;
const FRAME_HEADER_LEN: usize = 24;
const MAGIC_LITTLE: u32 = 0x377f_0682;
const MAGIC_BIG: u32 = 0x377f_0683;
const VERSION: u32 = 3_007_000;
/// Length of one copy of the index's header. There are two copies, followed by checkpoint information.
const INDEX_HEADER_LEN: usize = 48;
const INDEX_LEN: usize = 2 * INDEX_HEADER_LEN + 4;

/// How the log was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The host has not rebooted since the store was last opened, so the index can be trusted.
    SameBoot,
    /// Possibly by a power cut: the index may be from before or after it, and unsynced writes may be present in any
    /// order.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As far as can be determined, SQLite will read everything that was committed.
    Whole,
    /// Committed transactions would be lost.
    Damaged {
        /// The first invalid frame, from 1; 0 is the log's header.
        frame: u64,
    },
}

/// Checks the log of a database. Only reads.
pub(crate) fn look(database: &Path, left: Left) -> io::Result<Verdict> {
    let (log, index) = (beside(database, "-wal"), beside(database, "-shm"));
    if left == Left::SameBoot {
        for _ in 0..TRIES_MAX {
            let Some(before) = Index::read(&index)? else { break };
            // Frames that are already in the database are not lost with the log.
            if before.frames <= before.folded {
                return Ok(Verdict::Whole);
            }
            let scan = Scan::of(&log, Some(before.frames))?;
            if scan.salts == Some(before.salts) && scan.whole >= before.frames && scan.last == Some(before.checksum) {
                return Ok(Verdict::Whole);
            }
            if Index::read(&index)? == Some(before) {
                return Ok(Verdict::Damaged { frame: if scan.salts.is_some() { scan.whole + 1 } else { 0 } });
            }
        }
    }
    let scan = Scan::of(&log, None)?;
    // A power cut may leave any subset of the last transaction's sectors.
    let needed = if left == Left::SameBoot { 1 } else { 2 };
    Ok(match scan.salts {
        None if scan.is_strange => Verdict::Damaged { frame: 0 },
        _ if scan.commits_after >= needed => Verdict::Damaged { frame: scan.whole + 1 },
        _ => Verdict::Whole,
    })
}

/// Whether there is a log that isn't empty.
pub(crate) fn is_there(database: &Path) -> io::Result<bool> {
    match std::fs::metadata(beside(database, "-wal")) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        found => found.map(|_| true),
    }
}

pub(crate) fn beside(database: &Path, suffix: &str) -> std::path::PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

type Salts = [u8; 8];
type Checksum = (u32, u32);

/// The contents of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Index {
    /// Number of committed frames.
    frames: u64,
    /// Number of these that are in the database.
    folded: u64,
    salts: Salts,
    checksum: Checksum,
}

impl Index {
    /// `None` if there is no index, or only an incomplete one.
    fn read(path: &Path) -> io::Result<Option<Self>> {
        for _ in 0..TRIES_MAX {
            let mut bytes = [0; INDEX_LEN];
            match File::open(path).and_then(|mut file| file.read_exact(&mut bytes)) {
                Ok(()) => {}
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) => {
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
            if let Some(index) = Self::parse(&bytes) {
                return Ok(Some(index));
            }
            std::thread::yield_now();
        }
        Ok(None)
    }

    fn parse(bytes: &[u8; INDEX_LEN]) -> Option<Self> {
        let (one, rest) = bytes.split_at(INDEX_HEADER_LEN);
        let (other, folded) = rest.split_at(INDEX_HEADER_LEN);
        let word = |at: usize| u32::from_ne_bytes([one[at], one[at + 1], one[at + 2], one[at + 3]]);
        let is_whole = one == other
            && word(0) == VERSION
            && one[12] == 1
            && sum(&one[..40], (0, 0), u32::from_ne_bytes) == (word(40), word(44));
        let salts = one[32..40].try_into().ok()?;
        let folded = u32::from_ne_bytes(folded.try_into().ok()?);
        is_whole.then(|| Self { frames: word(16).into(), folded: folded.into(), salts, checksum: (word(24), word(28)) })
    }
}

/// The contents of a log.
#[derive(Debug, Default)]
struct Scan {
    /// From its header; `None` if that is invalid.
    salts: Option<Salts>,
    /// The file isn't empty and doesn't begin like a log.
    is_strange: bool,
    /// Number of valid frames from the start.
    whole: u64,
    /// The checksum of the last of them.
    last: Option<Checksum>,
    /// Number of transactions of this log that were committed after the first invalid frame.
    commits_after: u64,
}

impl Scan {
    /// Reads a log, or up to a number of its frames.
    fn of(path: &Path, frames_max: Option<u64>) -> io::Result<Self> {
        let mut scan = Self::default();
        let mut file = match File::open(path) {
            Ok(file) => BufReader::with_capacity(1 << 20, file),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(scan),
            Err(error) => return Err(error),
        };
        let mut header = [0; HEADER_LEN];
        if !fill(&mut file, &mut header)? {
            return Ok(scan);
        }
        let Some((read, page_len, salts, start)) = parse_header(&header) else {
            // A power cut can leave a file with its length but not yet its content.
            scan.is_strange = header != [0; HEADER_LEN] && fill(&mut file, &mut [0])?;
            return Ok(scan);
        };
        scan.salts = Some(salts);
        let mut frame = vec![0; FRAME_HEADER_LEN + page_len];
        let mut before = start;
        let mut is_broken = false;
        while frames_max.is_none_or(|most| scan.whole < most) && fill(&mut file, &mut frame)? {
            let word = |at: usize| u32::from_be_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
            let stored = (word(16), word(20));
            let is_of_this = frame[8..16] == salts;
            let follows = sum(&frame[FRAME_HEADER_LEN..], sum(&frame[..8], before, read), read) == stored;
            if is_of_this && follows && !is_broken {
                scan.whole += 1;
                scan.last = Some(stored);
            } else {
                // The last frame of a transaction has the size of the database.
                scan.commits_after += u64::from(is_broken && is_of_this && follows && word(4) != 0);
                is_broken = true;
                if frames_max.is_some() {
                    break;
                }
            }
            before = stored;
        }
        Ok(scan)
    }
}

type ReadWord = fn([u8; 4]) -> u32;

fn parse_header(header: &[u8; HEADER_LEN]) -> Option<(ReadWord, usize, Salts, Checksum)> {
    let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let read: ReadWord = match word(0) {
        MAGIC_LITTLE => u32::from_le_bytes,
        MAGIC_BIG => u32::from_be_bytes,
        _ => return None,
    };
    let page_len = usize::try_from(word(8)).ok().filter(|len| (512..=65536).contains(len) && len.is_power_of_two())?;
    let stored = (word(24), word(28));
    let is_whole = word(4) == VERSION && sum(&header[..24], (0, 0), read) == stored;
    is_whole.then_some((read, page_len, header[16..24].try_into().ok()?, stored))
}

/// SQLite's checksum, continued from another.
fn sum(bytes: &[u8], from: Checksum, read: ReadWord) -> Checksum {
    let (mut one, mut two) = from;
    for pair in bytes.chunks_exact(8) {
        one = one.wrapping_add(read([pair[0], pair[1], pair[2], pair[3]])).wrapping_add(two);
        two = two.wrapping_add(read([pair[4], pair[5], pair[6], pair[7]])).wrapping_add(one);
    }
    (one, two)
}

/// Returns whether the file had enough bytes.
fn fill(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<bool> {
    match file.read_exact(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
