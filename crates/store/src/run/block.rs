//! Runs that no worker takes until a person has decided: restored from a backup, or with a journal that can't be read.
//!
//! A blocked run reads as `parked`. Resuming it, or cancelling it where its journal is whole, lifts the block of everything below it too: a
//! parent waits for its child.

use rusqlite::{Connection, Row};
use saggar_domain::{ProjectId, RunId, Timestamp};

use super::inbox::{self, NewLetter};
use crate::column;
use crate::error::Error;
use crate::json_text::JsonText;
use crate::store::Store;
use crate::writer::Durability;

/// Longest reason that is kept.
const REASON_LEN_MAX: usize = 500;

/// Only whoever holds a run can say that its journal is damaged.
const BLOCK: &str = "
    UPDATE run SET blocked = 'damaged', blocked_reason = ?3, holder = NULL, lease_until = NULL,
        state = CASE state WHEN 'finished' THEN 'finished' ELSE 'parked' END
    WHERE id = ?1 AND epoch = ?2 AND blocked IS NULL";
const BLOCK_ALL: &str = "
    UPDATE run SET blocked = 'restored', blocked_reason = ?1, holder = NULL, lease_until = NULL, epoch = epoch + 1,
        state = 'parked', wake_at = coalesce(wake_at, updated_at)
    WHERE state <> 'finished' AND blocked IS NULL";
/// Nobody holds anything in a store that was just restored.
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

/// Why a run is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub kind: BlockKind,
    /// In words for a person.
    pub reason: String,
}

/// What kind of block it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockKind {
    /// The store was restored: the run may have gone on elsewhere.
    Restored,
    /// Its journal can't be read.
    Damaged,
}

impl BlockKind {
    /// As the column has it.
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

/// Blocks every run that is not over; says how many.
pub(crate) fn block_all(connection: &Connection, reason: &str) -> Result<usize, Error> {
    let blocked = column::execute(connection, BLOCK_ALL, [reason])?;
    column::execute(connection, DROP_ALL, [])?;
    Ok(blocked)
}

impl Store {
    /// The journal of a run can't be read: nobody takes it until a person has decided. Only for who holds it.
    pub async fn block_damaged(&self, run: RunId, epoch: u64, mut reason: String) -> Result<(), Error> {
        let end = (0..=REASON_LEN_MAX.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at));
        reason.truncate(end.unwrap_or(0));
        let work = move |connection: &Connection| {
            column::execute(connection, BLOCK, (run.as_str(), column::count(epoch), &reason)).map(|_| ())
        };
        self.write(Durability::Process, work).await
    }

    /// Which runs are blocked: this one and everything below it.
    pub async fn blocked_below(&self, run: RunId) -> Result<Vec<RunId>, Error> {
        let work = move |connection: &Connection| {
            column::all(connection, BELOW, [run.as_str()], |row| column::parsed(row, "id", RunId::parse))
        };
        self.read(work).await
    }

    /// Lifts the block of a run and of everything below it; says of how many.
    pub async fn unblock(&self, run: RunId, now: Timestamp) -> Result<usize, Error> {
        let work =
            move |connection: &Connection| column::execute(connection, UNBLOCK, (run.as_str(), column::millis(now)));
        self.write(Durability::Power, work).await
    }

    /// Ends a run whose journal can't be read: its journal stays as it is. `word` is for who waits for it. `false` where it isn't damaged.
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
