//! Reading a journal: the parents' past first, a page at a time. Each entry is held against its checksum, and none may be missing: what isn't
//! what was written is an error, and never an entry.

use rusqlite::Connection;
use saggar_domain::RunId;

use super::sum;
use crate::column;
use crate::error::Error;
use crate::store::Store;

/// Entries read at once.
pub const JOURNAL_PAGE: u32 = 1000;
/// Branches of branches that are followed; more is a mistake, and not a reason to recurse for ever.
const PARENTS_MAX: usize = 1000;

const PARENT: &str = "SELECT parent_id, parent_through, head FROM run WHERE id = ?1";
const PAGE: &str = "
    SELECT seq, entry, sum FROM journal WHERE run_id = ?1 AND seq > ?2 AND seq <= ?3 ORDER BY seq LIMIT ?4";

/// One entry, as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    pub seq: u64,
    pub entry: String,
}

impl Store {
    /// Entries of a run after that number, its parents' past included: at most a page of them, and none when there are no more.
    pub async fn journal_after(&self, run: RunId, after: u64) -> Result<Vec<JournalEntry>, Error> {
        self.journal_page(run, after, JOURNAL_PAGE).await
    }

    /// The same, at most `limit` of them and never more than a page.
    pub async fn journal_page(&self, run: RunId, after: u64, limit: u32) -> Result<Vec<JournalEntry>, Error> {
        self.read(move |connection| page(connection, &run, after, limit.min(JOURNAL_PAGE))).await
    }
}

/// Which run of the line holds the entry after `after`, and up to where.
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
    Err(Error::corrupt("a run has more parents than there can be".to_owned()))
}

/// Entries of one run's own, after `after` up to `until`.
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
            Some(sum) if sum != sum::of(id, seq, &entry) => Err(damaged(seq, "is not what was written")),
            Some(_) | None => Ok(JournalEntry { seq, entry }),
        }
    })?;
    let all = until.saturating_sub(after).min(limit.into());
    if (entries.len() as u64) < all { Err(damaged(expected, "is missing")) } else { Ok(entries) }
}
