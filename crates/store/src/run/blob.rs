//! Blobs: bodies that are too long for a journal, named by their hash. Equal bytes are stored once.
//!
//! A blob is stored before the entry or letter that names it, and deleted some time after its last user. A run uses the
//! blobs that its entries name, and those that letters to it name, read or unread. In between a blob may be *loose*:
//! not known to be named since some time. Storing the same bytes again restarts that time, so a blob can't be deleted
//! between being stored and being named.

use std::time::Duration;

use rusqlite::Connection;
use saggar_domain::{RunId, Timestamp};
use sha2::{Digest, Sha256};

use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

/// In bytes.
pub const BLOB_BYTES_MAX: usize = 64 << 20;

/// How long a loose blob is kept. Naming a blob follows storing it within moments.
const LOOSE_RETENTION: Duration = Duration::from_secs(60 * 60);
/// Hexadecimal digits of a hash.
const DIGITS: usize = 64;
/// The text before the hash in a reference.
const REFERENCE: &[u8] = b"\"hash\":\"";

const INSERT: &str = "INSERT INTO blob (hash, bytes) VALUES (?1, ?2) ON CONFLICT (hash) DO NOTHING";
const EXISTS: &str = "SELECT 1 AS is_there FROM blob WHERE hash = ?1";
const GET: &str = "SELECT bytes FROM blob WHERE hash = ?1";
const LOOSEN: &str = "
    INSERT INTO loose_blob (hash, since) VALUES (?1, ?2) ON CONFLICT (hash) DO UPDATE SET since = excluded.since";
const USE: &str = "INSERT OR IGNORE INTO blob_use (hash, run_id) SELECT hash, ?2 FROM blob WHERE hash = ?1";
const LET_GO: &str = "
    INSERT INTO loose_blob (hash, since) SELECT hash, ?2 FROM blob_use WHERE run_id = ?1
    ON CONFLICT (hash) DO UPDATE SET since = excluded.since";
const FORGET_USES: &str = "DELETE FROM blob_use WHERE run_id = ?1";
const OLDEST_LOOSE: &str = "SELECT hash FROM loose_blob WHERE since <= ?1 ORDER BY since LIMIT ?2";
const FORGET: &str = "DELETE FROM blob WHERE hash = ?1 AND NOT EXISTS (SELECT 1 FROM blob_use WHERE hash = ?1)";
/// A used blob is not loose. It becomes loose again when its last user is removed.
const FORGET_LOOSE: &str = "DELETE FROM loose_blob WHERE hash = ?1";

/// The SHA-256 of a blob's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobHash([u8; 32]);

impl BlobHash {
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Parses 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(hash))
    }

    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Access to the blobs while a store is verified.
#[derive(Debug)]
pub struct Blobs<'a>(pub(crate) &'a Connection);

impl Blobs<'_> {
    pub fn has(&self, hash: BlobHash) -> bool {
        column::one(self.0, EXISTS, [hash.0], |_| Ok(())).is_ok_and(|found| found.is_some())
    }

    pub fn get(&self, hash: BlobHash) -> Option<Vec<u8>> {
        column::one(self.0, GET, [hash.0], |row| column::plain(row, "bytes")).ok().flatten()
    }
}

impl Store {
    /// Stores bytes under their hash. Survives a power cut, because an entry that names them follows.
    pub async fn put_blob(&self, bytes: Vec<u8>, now: Timestamp) -> Result<BlobHash, Error> {
        let hash = BlobHash::of(&bytes);
        let work = move |connection: &Connection| {
            column::execute(connection, INSERT, (hash.0, &bytes))?;
            column::execute(connection, LOOSEN, (hash.0, column::millis(now))).map(|_| ())
        };
        self.write(Durability::Power, work).await?;
        Ok(hash)
    }

    /// The bytes of a hash; `None` if they don't exist. Bytes that no longer match their hash are an error.
    pub async fn blob(&self, hash: BlobHash) -> Result<Option<Vec<u8>>, Error> {
        let work = move |connection: &Connection| {
            let found = column::one(connection, GET, [hash.0], |row| column::plain::<Vec<u8>>(row, "bytes"))?;
            match found {
                Some(bytes) if BlobHash::of(&bytes) != hash => {
                    Err(Error::corrupt("a blob no longer matches its hash".to_owned()))
                }
                other => Ok(other),
            }
        };
        self.read(work).await
    }
}

/// Records which blobs an entry or letter names: every string in it that is the hash of one. The text isn't interpreted, with
/// one exception: a reference to a blob that isn't stored is an error, because no reader could resolve it.
pub(super) fn note_uses(connection: &Connection, run: &RunId, entry: &str) -> Result<(), Error> {
    for (hash, written_as) in named(entry) {
        let is_noted = column::execute(connection, USE, (hash.0, run.as_str()))? > 0;
        if !is_noted && written_as == WrittenAs::Reference && !Blobs(connection).has(hash) {
            return Err(Error::Missing { what: "a blob that is named" });
        }
    }
    Ok(())
}

/// The same for a run's first entry. It may name its agent, and then the blobs that the agent names are used too.
pub(super) fn note_uses_of_first(connection: &Connection, run: &RunId, entry: &str) -> Result<(), Error> {
    note_uses(connection, run, entry)?;
    for (hash, _) in named(entry) {
        let bytes = column::one(connection, GET, [hash.0], |row| column::plain::<Vec<u8>>(row, "bytes"))?;
        if let Some(text) = bytes.and_then(|bytes| String::from_utf8(bytes).ok()) {
            note_uses(connection, run, &text)?;
        }
    }
    Ok(())
}

/// Releases the blobs that a run named.
pub(super) fn let_go(connection: &Connection, run: &RunId, now: Timestamp) -> Result<(), Error> {
    column::execute(connection, LET_GO, (run.as_str(), column::millis(now)))?;
    column::execute(connection, FORGET_USES, [run.as_str()])?;
    Ok(())
}

/// Deletes blobs that have been loose for long and are unused. Returns the number of deleted rows.
pub(crate) fn forget_loose(connection: &Connection, now: Timestamp, rows_max: u32) -> Result<u32, Error> {
    let oldest = column::millis(now.before(LOOSE_RETENTION));
    let mut gone = 0;
    // Each is at most two rows.
    let loose =
        column::all(connection, OLDEST_LOOSE, (oldest, rows_max / 2), |row| column::plain::<[u8; 32]>(row, "hash"))?;
    for hash in loose.into_iter().map(BlobHash) {
        gone += column::execute(connection, FORGET, [hash.0])?;
        gone += column::execute(connection, FORGET_LOOSE, [hash.0])?;
    }
    Ok(u32::try_from(gone).unwrap_or(rows_max))
}

/// How a hash is written in an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WrittenAs {
    /// The value of a `hash` key. Only references have one: the words of people and models are inside strings.
    Reference,
    /// A string that may be anything.
    Text,
}

/// Strings of an entry that look like a hash: 64 digits between quotes.
fn named(entry: &str) -> impl Iterator<Item = (BlobHash, WrittenAs)> + '_ {
    let bytes = entry.as_bytes();
    let quotes = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'"').map(|(at, _)| at + 1);
    quotes.filter(|from| bytes.get(from + DIGITS) == Some(&b'"')).filter_map(|from| {
        let is_reference = bytes[..from].ends_with(REFERENCE);
        let written_as = if is_reference { WrittenAs::Reference } else { WrittenAs::Text };
        entry.get(from..from + DIGITS).and_then(BlobHash::parse).map(|hash| (hash, written_as))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_names_the_hashes_that_are_whole_texts_of_it() {
        let hash = BlobHash::of(b"x");
        let hex = hash.to_hex();
        let found = |entry: &str| named(entry).collect::<Vec<_>>();
        assert_eq!(
            found(&format!(r#"{{"a":{{"blob":{{"hash":"{hex}","length":1}}}},"b":["{hex}"]}}"#)),
            [(hash, WrittenAs::Reference), (hash, WrittenAs::Text)]
        );
        // A hash inside a longer text doesn't count as a use.
        let about = serde_json::to_string(&format!(r#"{{"hash":"{hex}"}}"#)).unwrap();
        for other in [about, format!(r#"{{"a":"{hex}0"}}"#), format!(r#"{{"a":"{}"}}"#, hex.to_uppercase()), hex] {
            assert_eq!(found(&other), [], "{other}");
        }
    }
}
