//! Appends to a journal: all or nothing, only by the run's holder, and only from the head that it knows. Consequences
//! for other runs are part of the commit: a child exists exactly if the entry that starts it does, and its end is
//! reported exactly if it has ended.

use rusqlite::Connection;
use saggar_domain::model::CallAmount;
use saggar_domain::{RunId, RunState, SandboxId, Timestamp};

use super::blob;
use super::create::{self, NewRun};
use super::inbox::{self, NewLetter};
use super::sum;
use crate::column;
use crate::error::Error;
use crate::json_text::JsonText;
use crate::sandbox_call::{self, LeftForSandboxes};
use crate::store::Store;
use crate::writer::Durability;

const FENCE: &str = "SELECT epoch, head FROM run WHERE id = ?1";
/// Advances the run if the writer holds it, knows its head, and the run isn't over. The effect of letters comes later.
const MOVE: &str = "
    UPDATE run SET head = ?2, state = ?3, updated_at = ?4, wake_at = ?5, outcome_json = ?6, sandbox_id = coalesce(?7, sandbox_id),
        room_since = ?10, left_tokens = ?11, left_micros = ?12
    WHERE id = ?1 AND epoch = ?8 AND head = ?9 AND state <> 'finished'";
/// The same for a run whose state doesn't change, which is nearly every append: no indexed column is touched.
const STEP: &str = "
    UPDATE run SET head = ?2, updated_at = ?3, left_tokens = ?6, left_micros = ?7
    WHERE id = ?1 AND epoch = ?4 AND head = ?5 AND state = 'running' AND wake_at <= ?3 AND room_since IS NULL";
const SET_FILES: &str = "UPDATE run SET files_json = ?2 WHERE id = ?1";
/// The sandbox of a run that was rolled back is of another generation.
const BEGIN_AGAIN: &str = "UPDATE run SET generation = ?2, sandbox_id = NULL WHERE id = ?1";
/// A run that is over and has nothing to release needs no holder.
const LET_GO: &str = "UPDATE run SET holder = NULL, lease_until = NULL WHERE id = ?1";
/// A letter that arrived in the meantime, unknown to the writer, keeps its run awake.
const WAKE: &str = "
    UPDATE run SET wake_at = min(coalesce(wake_at, ?2), ?2)
    WHERE id = ?1 AND EXISTS (SELECT 1 FROM inbox WHERE run_id = ?1 AND n > ?3)";
const CONSUME: &str = "DELETE FROM inbox WHERE n = ?1 AND run_id = ?2";
/// Unread letters of a run that is over are deleted.
const EMPTY: &str = "DELETE FROM inbox WHERE run_id = ?1";

#[derive(Clone, Debug)]
pub struct Append {
    pub run: RunId,
    pub epoch: u64,
    /// The last entry that the writer knows.
    pub head: u64,
    /// Numbered from `head + 1`.
    pub entries: Vec<String>,
    /// The run's state after the append.
    pub summary: Summary,
    /// Numbers of the letters that these entries consume.
    pub consumed: Vec<i64>,
    /// The newest letter that the writer knows. If it left that one unread, the run may sleep; a newer letter keeps
    /// it awake.
    pub seen: i64,
    /// Runs that these entries start.
    pub children: Vec<NewRun>,
    /// Letters to other runs. A finished run receives none.
    pub letters: Vec<NewLetter>,
    /// Its snapshots, and where its files come from, if that is new.
    pub files: Option<JsonText>,
    /// The generation of a run that was rolled back. It has no sandbox then.
    pub generation: Option<u32>,
    /// What the run's budget leaves for calls of models by programs in its sandboxes.
    pub left: LeftForSandboxes,
    /// Refuses entries that were decided before another such call began, where that matters.
    pub known_calls: Option<KnownCalls>,
}

/// What calls of models by programs in the run's sandboxes had come to when entries were decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownCalls {
    /// At most.
    pub amount: CallAmount,
    /// Whether more is all right as long as it fits what the run leaves.
    pub may_grow: bool,
}

#[derive(Clone, Debug)]
pub struct Summary {
    pub state: RunState,
    pub at: Timestamp,
    /// When a worker should look at it. A finished run that still holds something is looked at until it has released
    /// it.
    pub wake_at: Option<Timestamp>,
    pub outcome: Option<JsonText>,
    /// Since when its open step has been waiting for sandbox capacity.
    pub room_since: Option<Timestamp>,
    /// The run's sandbox, if it is new.
    pub sandbox: Option<SandboxId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// Durable.
    Done {
        /// The number of the last entry.
        head: u64,
    },
    /// Another worker holds the run: nothing was written, and the writer must stop.
    Fenced {
        epoch: u64,
    },
    /// The journal's head is another: nothing was written.
    Moved {
        head: u64,
    },
    /// Programs in the run's sandboxes have called models meanwhile, and these entries don't fit beside them: nothing was
    /// written.
    Overtaken,
    /// The run is over: nothing was written.
    Finished,
    Absent,
}

impl Store {
    /// Appends if the writer still holds the run and knows its head. Survives a power cut.
    pub async fn append(&self, append: Append) -> Result<Appended, Error> {
        // Computed here, not on the writer thread, which every write waits for.
        let sums = sum::of_all(&append.run, append.head + 1, &append.entries);
        self.write(Durability::Power, move |connection| apply(connection, &append, &sums)).await
    }
}

fn apply(connection: &Connection, append: &Append, sums: &[i64]) -> Result<Appended, Error> {
    let (id, summary) = (append.run.as_str(), &append.summary);
    if let Some(known) = append.known_calls
        && is_overtaken(connection, append, known)?
    {
        return Ok(Appended::Overtaken);
    }
    let seq = append.head + append.entries.len() as u64;
    let goes_on = go_on(connection, append, seq)?;
    if !goes_on && !change(connection, append, seq)? {
        return why_not(connection, append);
    }
    for ((seq, entry), sum) in (append.head + 1..).zip(&append.entries).zip(sums) {
        sum::insert(connection, id, seq, entry, *sum)?;
        blob::note_uses(connection, &append.run, entry)?;
    }
    for letter in &append.consumed {
        column::execute(connection, CONSUME, (letter, id))?;
    }
    if summary.state == RunState::Finished {
        column::execute(connection, EMPTY, [id])?;
        if summary.wake_at.is_none() {
            column::execute(connection, LET_GO, [id])?;
        }
    } else if !goes_on {
        column::execute(connection, WAKE, (id, column::millis(summary.at), append.seen))?;
    }
    if let Some(files) = &append.files {
        column::execute(connection, SET_FILES, (id, files.as_str()))?;
    }
    if let Some(generation) = append.generation {
        column::execute(connection, BEGIN_AGAIN, (id, generation))?;
    }
    for child in &append.children {
        create::insert_child(connection, child)?;
    }
    for letter in &append.letters {
        inbox::deliver(connection, letter)?;
    }
    Ok(Appended::Done { head: seq })
}

/// Whether calls have begun that these entries don't allow for. An append that was made before, and whose answer was lost, is none.
fn is_overtaken(connection: &Connection, append: &Append, known: KnownCalls) -> Result<bool, Error> {
    let is_next = fence(connection, append)?.is_some_and(|fence| fence == (append.epoch, append.head));
    if !is_next {
        return Ok(false);
    }
    let now = sandbox_call::read(connection, &append.run)?.at_most();
    let has_grown = now.tokens > known.amount.tokens || now.micros > known.amount.micros;
    Ok(has_grown && (!known.may_grow || append.left.is_exceeded_by(now)))
}

/// The run's epoch and head.
fn fence(connection: &Connection, append: &Append) -> Result<Option<(u64, u64)>, Error> {
    column::one(connection, FENCE, [append.run.as_str()], |row| {
        Ok((column::number(row, "epoch")?, column::number(row, "head")?))
    })
}

/// Advances a run that was running and still is. It is due already, by a time in the past, and stays so.
fn go_on(connection: &Connection, append: &Append, seq: u64) -> Result<bool, Error> {
    let summary = &append.summary;
    if summary.state != RunState::Running || summary.sandbox.is_some() || summary.room_since.is_some() {
        return Ok(false);
    }
    let params = (
        append.run.as_str(),
        column::count(seq),
        column::millis(summary.at),
        column::count(append.epoch),
        column::count(append.head),
        append.left.tokens.map(column::count),
        append.left.micros.map(column::count),
    );
    Ok(column::execute(connection, STEP, params)? > 0)
}

fn change(connection: &Connection, append: &Append, seq: u64) -> Result<bool, Error> {
    let summary = &append.summary;
    let params = (
        append.run.as_str(),
        column::count(seq),
        summary.state.as_str(),
        column::millis(summary.at),
        summary.wake_at.map(column::millis),
        summary.outcome.as_ref().map(JsonText::as_str),
        summary.sandbox.as_ref().map(SandboxId::as_str),
        column::count(append.epoch),
        column::count(append.head),
        summary.room_since.map(column::millis),
        append.left.tokens.map(column::count),
        append.left.micros.map(column::count),
    );
    Ok(column::execute(connection, MOVE, params)? > 0)
}

/// Why a run was not advanced.
fn why_not(connection: &Connection, append: &Append) -> Result<Appended, Error> {
    Ok(match fence(connection, append)? {
        None => Appended::Absent,
        Some((epoch, _)) if epoch != append.epoch => Appended::Fenced { epoch },
        Some((_, head)) if head != append.head => Appended::Moved { head },
        // No other condition keeps a run from being advanced.
        Some(_) => Appended::Finished,
    })
}
