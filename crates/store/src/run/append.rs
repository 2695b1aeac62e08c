//! Appending to a journal: all of it or nothing, by whoever holds the run, from where they left it. What an entry means for other runs is
//! part of it: a child is there exactly if the entry is that starts it, and its end is told exactly if it has ended.

use rusqlite::Connection;
use saggar_domain::{RunId, RunState, SandboxId, Timestamp};

use super::blob;
use super::create::{self, NewRun};
use super::inbox::{self, NewLetter};
use super::sum;
use crate::column;
use crate::error::Error;
use crate::json_text::JsonText;
use crate::store::Store;
use crate::writer::Durability;

const FENCE: &str = "SELECT epoch, head FROM run WHERE id = ?1";
/// Moves the run on if it is the writer's, where they left it, and not over. What follows from the letters comes after.
const MOVE: &str = "
    UPDATE run SET head = ?2, state = ?3, updated_at = ?4, wake_at = ?5, outcome_json = ?6, sandbox_id = coalesce(?7, sandbox_id),
        room_since = ?10
    WHERE id = ?1 AND epoch = ?8 AND head = ?9 AND state <> 'finished'";
/// The same for a run that goes on as it did, which is what nearly every append is: nothing that an index holds is touched.
const STEP: &str = "
    UPDATE run SET head = ?2, updated_at = ?3
    WHERE id = ?1 AND epoch = ?4 AND head = ?5 AND state = 'running' AND wake_at <= ?3 AND room_since IS NULL";
/// Nobody holds a run that is over and has nothing to let go of.
const LET_GO: &str = "UPDATE run SET holder = NULL, lease_until = NULL WHERE id = ?1";
/// A letter that came meanwhile, and that the writer doesn't know of, keeps its run awake.
const WAKE: &str = "
    UPDATE run SET wake_at = min(coalesce(wake_at, ?2), ?2)
    WHERE id = ?1 AND EXISTS (SELECT 1 FROM inbox WHERE run_id = ?1 AND n > ?3)";
const CONSUME: &str = "DELETE FROM inbox WHERE n = ?1 AND run_id = ?2";
/// Nobody reads what is left for a run that is over.
const EMPTY: &str = "DELETE FROM inbox WHERE run_id = ?1";

/// What to append.
#[derive(Clone, Debug)]
pub struct Append {
    /// To which run.
    pub run: RunId,
    pub epoch: u64,
    /// After which entry.
    pub head: u64,
    /// What; numbered from `head + 1`.
    pub entries: Vec<String>,
    /// What the run then is.
    pub summary: Summary,
    /// Letters that these entries answer, by number.
    pub consumed: Vec<i64>,
    /// The newest letter that the writer knows of. One that it left unread doesn't keep the run awake; a newer one does.
    pub seen: i64,
    /// Runs that these entries start.
    pub children: Vec<NewRun>,
    /// What these entries say to other runs. One that has finished hears nothing.
    pub letters: Vec<NewLetter>,
}

/// A run in short.
#[derive(Clone, Debug)]
pub struct Summary {
    /// What it does.
    pub state: RunState,
    pub at: Timestamp,
    /// When somebody should look at it. A run that has finished and still holds something is looked at until it is let go of.
    pub wake_at: Option<Timestamp>,
    /// How it ended.
    pub outcome: Option<JsonText>,
    /// Since when its open step has waited for room for a sandbox, where it had to.
    pub room_since: Option<Timestamp>,
    /// The sandbox it works in, if that is new.
    pub sandbox: Option<SandboxId>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// It is durable.
    Done {
        /// The number of the last entry.
        head: u64,
    },
    /// Another holds the run: nothing was written, and nothing may be done.
    Fenced { epoch: u64 },
    /// The journal is not where the writer thought: nothing was written.
    Moved {
        /// Where it is.
        head: u64,
    },
    /// The run is over: nothing was written.
    Finished,
    /// There is no such run.
    Absent,
}

impl Store {
    /// Appends, if the run is still the writer's and where they left it. Survives a power cut.
    pub async fn append(&self, append: Append) -> Result<Appended, Error> {
        // Not on the thread that everybody waits for.
        let sums = sum::of_all(&append.run, append.head + 1, &append.entries);
        self.write(Durability::Power, move |connection| apply(connection, &append, &sums)).await
    }
}

fn apply(connection: &Connection, append: &Append, sums: &[i64]) -> Result<Appended, Error> {
    let (id, summary) = (append.run.as_str(), &append.summary);
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
    for child in &append.children {
        create::insert_child(connection, child)?;
    }
    for letter in &append.letters {
        inbox::deliver(connection, letter)?;
    }
    Ok(Appended::Done { head: seq })
}

/// Moves on a run that was running and is. It is due already, by a time that has passed, and stays so.
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
    );
    Ok(column::execute(connection, MOVE, params)? > 0)
}

/// Why a run was not moved.
fn why_not(connection: &Connection, append: &Append) -> Result<Appended, Error> {
    let id = append.run.as_str();
    let found =
        column::one(connection, FENCE, [id], |row| Ok((column::number(row, "epoch")?, column::number(row, "head")?)))?;
    Ok(match found {
        None => Appended::Absent,
        Some((epoch, _)) if epoch != append.epoch => Appended::Fenced { epoch },
        Some((_, head)) if head != append.head => Appended::Moved { head },
        // Nothing else keeps a run from being moved.
        Some(_) => Appended::Finished,
    })
}
