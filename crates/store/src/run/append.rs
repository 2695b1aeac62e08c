//! Appending to a journal: all of it or nothing, by whoever holds the run, from where they left it.

use rusqlite::Connection;
use saggar_domain::{RunId, RunState, SandboxId, Timestamp};

use crate::column;
use crate::error::Error;
use crate::json_text::JsonText;
use crate::store::Store;
use crate::writer::Durability;

const FENCE: &str = "SELECT epoch, head FROM run WHERE id = ?1";
const INSERT: &str = "INSERT INTO journal (run_id, seq, entry) VALUES (?1, ?2, ?3)";
/// A letter that came meanwhile, and that the writer doesn't know of, keeps its run awake.
const MOVE: &str = "
    UPDATE run SET head = ?2, state = ?3, updated_at = ?4, outcome_json = ?6, sandbox_id = coalesce(?7, sandbox_id),
        wake_at = iif(EXISTS (SELECT 1 FROM inbox WHERE run_id = ?1), min(coalesce(?5, ?4), ?4), ?5),
        holder = iif(?3 = 'finished', NULL, holder), lease_until = iif(?3 = 'finished', NULL, lease_until)
    WHERE id = ?1";
const CONSUME: &str = "DELETE FROM inbox WHERE n = ?1 AND run_id = ?2";
/// Nobody reads what is left for a run that is over.
const EMPTY: &str = "DELETE FROM inbox WHERE run_id = ?1";

/// What to append.
#[derive(Clone, Debug)]
pub struct Append {
    /// To which run.
    pub run: RunId,
    /// By whom.
    pub epoch: u64,
    /// After which entry.
    pub head: u64,
    /// What; numbered from `head + 1`.
    pub entries: Vec<String>,
    /// What the run then is.
    pub summary: Summary,
    /// Letters that these entries answer, by number.
    pub consumed: Vec<i64>,
}

/// A run in short.
#[derive(Clone, Debug)]
pub struct Summary {
    /// What it does.
    pub state: RunState,
    /// When.
    pub at: Timestamp,
    /// When somebody should look at it.
    pub wake_at: Option<Timestamp>,
    /// How it ended.
    pub outcome: Option<JsonText>,
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
    Fenced {
        /// Their epoch.
        epoch: u64,
    },
    /// The journal is not where the writer thought: nothing was written.
    Moved {
        /// Where it is.
        head: u64,
    },
    /// There is no such run.
    Absent,
}

impl Store {
    /// Appends, if the run is still the writer's and where they left it. Survives a power cut.
    pub async fn append(&self, append: Append) -> Result<Appended, Error> {
        self.write(Durability::Power, move |connection| apply(connection, &append)).await
    }
}

fn apply(connection: &Connection, append: &Append) -> Result<Appended, Error> {
    let id = append.run.as_str();
    let found =
        column::one(connection, FENCE, [id], |row| Ok((column::number(row, "epoch")?, column::number(row, "head")?)))?;
    let Some((epoch, head)) = found else { return Ok(Appended::Absent) };
    if epoch != append.epoch {
        return Ok(Appended::Fenced { epoch });
    }
    if head != append.head {
        return Ok(Appended::Moved { head });
    }
    let mut seq = head;
    for entry in &append.entries {
        seq += 1;
        column::execute(connection, INSERT, (id, column::count(seq), entry))?;
    }
    let summary = &append.summary;
    for letter in &append.consumed {
        column::execute(connection, CONSUME, (letter, id))?;
    }
    if summary.state == RunState::Finished {
        column::execute(connection, EMPTY, [id])?;
    }
    let params = (
        id,
        column::count(seq),
        summary.state.as_str(),
        column::millis(summary.at),
        summary.wake_at.map(column::millis),
        summary.outcome.as_ref().map(JsonText::as_str),
        summary.sandbox.as_ref().map(SandboxId::as_str),
    );
    column::execute(connection, MOVE, params)?;
    Ok(Appended::Done { head: seq })
}
