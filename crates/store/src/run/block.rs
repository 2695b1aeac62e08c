//! Blocked runs: no worker claims them until a human has decided. They were restored from a backup, or their journal
//! is unreadable.
//!
//! A blocked run has the state `parked`. Resuming it, or cancelling it if its journal is intact, also unblocks all
//! its descendants, because a parent waits for its child.

use rusqlite::{Connection, Row};
use saggar_domain::{ProjectId, RunId, Timestamp};

use super::inbox::{self, NewLetter};
use crate::column;
use crate::error::Error;
use crate::json_text::JsonText;
use crate::store::Store;
use crate::writer::Durability;

/// In bytes.
const REASON_LEN_MAX: usize = 500;

/// Only the holder of a run may report its journal as damaged.
const BLOCK: &str = "
    UPDATE run SET blocked = 'damaged', blocked_reason = ?3, holder = NULL, lease_until = NULL,
        state = CASE state WHEN 'finished' THEN 'finished' ELSE 'parked' END
    WHERE id = ?1 AND epoch = ?2 AND blocked IS NULL";
const BLOCK_ALL: &str = "
    UPDATE run SET blocked = 'restored', blocked_reason = ?1, holder = NULL, lease_until = NULL, epoch = epoch + 1,
        state = 'parked', wake_at = coalesce(wake_at, updated_at)
    WHERE state <> 'finished' AND blocked IS NULL";
/// In a store that was just restored, no lease is valid.
const DROP_ALL: &str = "UPDATE run SET holder = NULL, lease_until = NULL WHERE holder IS NOT NULL";
const BELOW: &str = "
    WITH RECURSIVE below (id) AS (SELECT ?1 UNION SELECT run.id FROM run JOIN below ON run.child_of = below.id)
    SELECT id FROM run WHERE id IN (SELECT id FROM below) AND blocked IS NOT NULL AND state <> 'finished'";
const UNBLOCK: &str = "
    WITH RECURSIVE below (id) AS (SELECT ?1 UNION SELECT run.id FROM run JOIN below ON run.child_of = below.id)
    UPDATE run SET blocked = NULL, blocked_reason = NULL, state = 'queued', wake_at = ?2
    WHERE id IN (SELECT id FROM below) AND blocked IS NOT NULL AND state <> 'finished'";
const END: &str = "
    UPDATE run SET state = 'finished', outcome_json = ?3, updated_at = ?4, holder = NULL, lease_until = NULL,
        epoch = epoch + 1, blocked = NULL, blocked_reason = NULL,
        wake_at = CASE WHEN sandbox_id IS NULL THEN NULL ELSE ?4 END
    WHERE id = ?1 AND project_id = ?2 AND blocked = 'damaged' AND state <> 'finished'";
const EMPTY: &str = "DELETE FROM inbox WHERE run_id = ?1";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub kind: BlockKind,
    /// For people.
    pub reason: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// The store was restored, and the run may have continued elsewhere.
    Restored,
    /// Its journal can't be read.
    Damaged,
}

impl BlockKind {
    /// The column's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Restored => "restored",
            Self::Damaged => "damaged",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Restored, Self::Damaged].into_iter().find(|kind| kind.as_str() == text)
    }
}

pub(super) fn read(row: &Row<'_>) -> Result<Option<Block>, Error> {
    let kind = column::parsed_optional(row, "blocked", BlockKind::parse)?;
    let reason: Option<String> = column::plain(row, "blocked_reason")?;
    Ok(kind.zip(reason).map(|(kind, reason)| Block { kind, reason }))
}

/// Blocks every run that is not over. Returns their number.
pub(crate) fn block_all(connection: &Connection, reason: &str) -> Result<usize, Error> {
    let blocked = column::execute(connection, BLOCK_ALL, [reason])?;
    column::execute(connection, DROP_ALL, [])?;
    Ok(blocked)
}

impl Store {
    /// Blocks a run whose journal can't be read, until a human has decided. Only for its holder.
    pub async fn block_damaged(&self, run: RunId, epoch: u64, mut reason: String) -> Result<(), Error> {
        let end = (0..=REASON_LEN_MAX.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at));
        reason.truncate(end.unwrap_or(0));
        let work = move |connection: &Connection| {
            column::execute(connection, BLOCK, (run.as_str(), column::count(epoch), &reason)).map(|_| ())
        };
        self.write(Durability::Process, work).await
    }

    /// The blocked runs among this one and its descendants.
    pub async fn blocked_below(&self, run: RunId) -> Result<Vec<RunId>, Error> {
        let work = move |connection: &Connection| {
            column::all(connection, BELOW, [run.as_str()], |row| column::parsed(row, "id", RunId::parse))
        };
        self.read(work).await
    }

    /// Unblocks a run and its descendants. Returns their number.
    pub async fn unblock(&self, run: RunId, now: Timestamp) -> Result<usize, Error> {
        let work =
            move |connection: &Connection| column::execute(connection, UNBLOCK, (run.as_str(), column::millis(now)));
        self.write(Durability::Power, work).await
    }

    /// Ends a run whose journal can't be read; the journal stays unchanged. `word` is the letter for the run that
    /// waits for it. Returns `false` if the run isn't damaged.
    pub async fn end_damaged(
        &self,
        project: ProjectId,
        run: RunId,
        outcome: JsonText,
        at: Timestamp,
        word: Option<NewLetter>,
    ) -> Result<bool, Error> {
        let work = move |connection: &Connection| {
            let params = (run.as_str(), project.as_str(), outcome.as_str(), column::millis(at));
            if column::execute(connection, END, params)? == 0 {
                return Ok(false);
            }
            column::execute(connection, EMPTY, [run.as_str()])?;
            if let Some(word) = &word {
                inbox::deliver(connection, word)?;
            }
            Ok(true)
        };
        self.write(Durability::Power, work).await
    }
}
