//! Checksums of entries. SQLite has none on its pages, so a flipped bit on the disk would read as a different entry.

use rusqlite::Connection;
use saggar_domain::RunId;
use sha2::{Digest, Sha256};

use crate::column;
use crate::error::Error;

const INSERT: &str = "INSERT INTO journal (run_id, seq, entry, sum) VALUES (?1, ?2, ?3, ?4)";

/// The first 64 bits of a SHA-256 over the run, the number and the text.
pub(super) fn of(run: &RunId, seq: u64, entry: &str) -> i64 {
    let mut hash = Sha256::new();
    // An id has no zero byte and a number has eight bytes, so no two entries have the same input.
    hash.update(run.as_str());
    hash.update([0]);
    hash.update(seq.to_be_bytes());
    hash.update(entry);
    let mut first = [0; 8];
    first.copy_from_slice(&hash.finalize()[..8]);
    i64::from_be_bytes(first)
}

/// The checksums of entries numbered from `first`.
pub(super) fn of_all(run: &RunId, first: u64, entries: &[String]) -> Vec<i64> {
    (first..).zip(entries).map(|(seq, entry)| of(run, seq, entry)).collect()
}

pub(super) fn insert(connection: &Connection, run: &str, seq: u64, entry: &str, sum: i64) -> Result<(), Error> {
    column::execute(connection, INSERT, (run, column::count(seq), entry, sum)).map(|_| ())
}
