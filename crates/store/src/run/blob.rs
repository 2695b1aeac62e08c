//! Blobs: what is too long for a journal, named by its hash. The same bytes are there once.
//!
//! A blob is put before the entry or the letter that names it, and goes some time after its last user. A run uses what its entries name, and
//! what the letters to it name, read or not. In between a blob may be *loose*: nothing is known to name it since a moment. Putting the same
//! bytes again starts that time anew, so a blob can't go between being put and being named.

use std::time::Duration;

use rusqlite::Connection;
use saggar_domain::{RunId, Timestamp};
use sha2::{Digest, Sha256};

use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

/// The longest blob.
pub const BLOB_BYTES_MAX: usize = 64 << 20;

/// How long a blob that nothing names is kept. Between putting a blob and naming it are moments.
const LOOSE_RETENTION: Duration = Duration::from_secs(60 * 60);
/// Hexadecimal digits of a hash.
const DIGITS: usize = 64;
/// What comes before the hash in a reference, as it is written without spaces.
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
/// One that is used is not loose. It is again when its last user lets go of it.
const FORGET_LOOSE: &str = "DELETE FROM loose_blob WHERE hash = ?1";

/// The SHA-256 of a blob's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobHash([u8; 32]);

impl BlobHash {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Reads 64 hexadecimal digits.
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

    /// As 64 hexadecimal digits.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The blobs of a store that is looked through.
#[derive(Debug)]
pub struct Blobs<'a>(pub(crate) &'a Connection);

impl Blobs<'_> {
    /// Whether there is one of this hash.
    pub fn has(&self, hash: BlobHash) -> bool {
        column::one(self.0, EXISTS, [hash.0], |_| Ok(())).is_ok_and(|found| found.is_some())
    }

    pub fn get(&self, hash: BlobHash) -> Option<Vec<u8>> {
        column::one(self.0, GET, [hash.0], |row| column::plain(row, "bytes")).ok().flatten()
    }
}

impl Store {
    /// Keeps bytes under their hash. Survives a power cut: an entry that names them comes after.
    pub async fn put_blob(&self, bytes: Vec<u8>, now: Timestamp) -> Result<BlobHash, Error> {
        let hash = BlobHash::of(&bytes);
        let work = move |connection: &Connection| {
            column::execute(connection, INSERT, (hash.0, &bytes))?;
            column::execute(connection, LOOSEN, (hash.0, column::millis(now))).map(|_| ())
        };
        self.write(Durability::Power, work).await?;
        Ok(hash)
    }

    /// The bytes of a hash; `None` when they aren't there. Bytes that no longer have their hash are damaged.
    pub async fn blob(&self, hash: BlobHash) -> Result<Option<Vec<u8>>, Error> {
        let work = move |connection: &Connection| {
            let found = column::one(connection, GET, [hash.0], |row| column::plain::<Vec<u8>>(row, "bytes"))?;
            match found {
                Some(bytes) if BlobHash::of(&bytes) != hash => {
                    Err(Error::corrupt("a blob doesn't have its hash any more".to_owned()))
                }
                other => Ok(other),
            }
        };
        self.read(work).await
    }
}

/// Writes down which blobs an entry or a letter names: every text in it that is the hash of one. What it means is not looked at, but for
/// one thing: what is written as a reference to a blob that isn't there is refused, because whoever reads it could not go on.
pub(super) fn note_uses(connection: &Connection, run: &RunId, entry: &str) -> Result<(), Error> {
    for (hash, written_as) in named(entry) {
        let is_noted = column::execute(connection, USE, (hash.0, run.as_str()))? > 0;
        if !is_noted && written_as == WrittenAs::Reference && !Blobs(connection).has(hash) {
            return Err(Error::Missing { what: "a blob that is named" });
        }
    }
    Ok(())
}

/// The same for a run's first entry. It may name its agent, and what that names is used with it.
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

/// Lets go of what a run named.
pub(super) fn let_go(connection: &Connection, run: &RunId, now: Timestamp) -> Result<(), Error> {
    column::execute(connection, LET_GO, (run.as_str(), column::millis(now)))?;
    column::execute(connection, FORGET_USES, [run.as_str()])?;
    Ok(())
}

/// Deletes blobs that have been loose for long and that nothing names; says how many rows are gone.
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
    /// The value of `hash`, which only a blob's name is: what people and models say is inside of texts.
    Reference,
    /// A text that may be anything.
    Text,
}

/// Texts of an entry that look like a hash: 64 digits between quotes.
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
        // Part of a longer text, or text about a blob, names none.
        let about = serde_json::to_string(&format!(r#"{{"hash":"{hex}"}}"#)).unwrap();
        for other in [about, format!(r#"{{"a":"{hex}0"}}"#), format!(r#"{{"a":"{}"}}"#, hex.to_uppercase()), hex] {
            assert_eq!(found(&other), [], "{other}");
        }
    }
}
