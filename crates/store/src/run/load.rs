//! Reads a journal, the parents' history first, one page at a time. Each entry is verified by its checksum, and gaps
//! are detected: damage is an error, and never returned as an entry.

use rusqlite::Connection;
use saggar_domain::RunId;

use super::sum;
use crate::column;
use crate::error::Error;
use crate::store::Store;

/// Entries read at once.
pub const JOURNAL_PAGE: u32 = 1000;
/// Maximum depth of forks; a deeper chain is a bug, and not followed forever.
const PARENTS_MAX: usize = 1000;

const PARENT: &str = "SELECT parent_id, parent_through, head FROM run WHERE id = ?1";
const PAGE: &str = "
    SELECT seq, entry, sum FROM journal WHERE run_id = ?1 AND seq > ?2 AND seq <= ?3 ORDER BY seq LIMIT ?4";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    pub seq: u64,
    pub entry: String,
}

impl Store {
    /// At most one page of a run's entries after this number, including its parents' history; empty at the end.
    pub async fn journal_after(&self, run: RunId, after: u64) -> Result<Vec<JournalEntry>, Error> {
        self.journal_page(run, after, JOURNAL_PAGE).await
    }

    /// The same, with at most `limit` entries and never more than one page.
    pub async fn journal_page(&self, run: RunId, after: u64, limit: u32) -> Result<Vec<JournalEntry>, Error> {
        self.read(move |connection| page(connection, &run, after, limit.min(JOURNAL_PAGE))).await
    }
}

/// Finds which run of the line has the entry after `after`, and up to where, and reads it.
pub(crate) fn page(connection: &Connection, run: &RunId, after: u64, limit: u32) -> Result<Vec<JournalEntry>, Error> {
    let mut id = run.clone();
    let mut until = u64::MAX;
    for _ in 0..PARENTS_MAX {
        let found = column::one(connection, PARENT, [id.as_str()], |row| {
            let parent = column::parsed_optional(row, "parent_id", RunId::parse)?;
            Ok((parent.zip(column::number_optional(row, "parent_through")?), column::number(row, "head")?))
        })?;
        let Some((parent, head)) = found else { return Ok(Vec::new()) };
        match parent {
            Some((parent, through)) if after < through => {
                id = parent;
                until = until.min(through);
            }
            _ => {
                return own_page(connection, &id, after, until.min(head), limit);
            }
        }
    }
    Err(Error::corrupt("a run's chain of forks is too long".to_owned()))
}

/// A run's own entries, after `after` up to `until`.
fn own_page(
    connection: &Connection,
    id: &RunId,
    after: u64,
    until: u64,
    limit: u32,
) -> Result<Vec<JournalEntry>, Error> {
    let params = (id.as_str(), column::count(after), column::count(until), limit);
    let damaged = |seq: u64, what: &str| Error::corrupt(format!("entry {seq} of {id} {what}"));
    let mut expected = after + 1;
    let entries = column::all(connection, PAGE, params, |row| {
        let seq = column::number(row, "seq")?;
        if seq != expected {
            return Err(damaged(expected, "is missing"));
        }
        expected += 1;
        let entry: String = row.get("entry").map_err(|_| damaged(seq, "is not text"))?;
        match column::plain::<Option<i64>>(row, "sum")? {
            Some(sum) if sum != sum::of(id, seq, &entry) => Err(damaged(seq, "does not match its checksum")),
            Some(_) | None => Ok(JournalEntry { seq, entry }),
        }
    })?;
    let all = until.saturating_sub(after).min(limit.into());
    if (entries.len() as u64) < all { Err(damaged(expected, "is missing")) } else { Ok(entries) }
}
