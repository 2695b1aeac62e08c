//! A run's inbox: messages to it. A letter is durable before it is acknowledged, deduplicated by id, and consumed by
//! the run's holder.

use rusqlite::Connection;
use saggar_domain::{ProjectId, RunId, RunState, Timestamp};

use super::{blob, get};
use crate::column;
use crate::error::Error;
use crate::json_text::JsonText;
use crate::store::Store;
use crate::writer::Durability;

/// Maximum number of unread letters per run.
const LETTERS_MAX: u64 = 1000;
/// Additional room for control letters, so that messages never keep them out.
const CONTROL_MAX: u64 = 100;

const COUNT: &str = "SELECT count(*) AS letters FROM inbox WHERE run_id = ?1";
const INSERT: &str = "
    INSERT INTO inbox (run_id, id, at, body_json) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (run_id, id) DO NOTHING";
/// Wakes a run that sleeps until later, or forever.
const WAKE: &str = "UPDATE run SET wake_at = min(coalesce(wake_at, ?2), ?2) WHERE id = ?1 AND state <> 'finished'";
/// A new letter from one run to another replaces the earlier one, under a new number: a worker that has read the
/// earlier one has not read this.
const REPLACE: &str = "DELETE FROM inbox WHERE run_id = ?1 AND id = ?2";
const IS_LIVE: &str = "SELECT 1 AS is_live FROM run WHERE id = ?1 AND project_id = ?2 AND state <> 'finished'";
const WAKE_UNREAD: &str = "
    UPDATE run SET wake_at = min(coalesce(wake_at, ?1), ?1)
    WHERE state <> 'finished' AND id IN (SELECT run_id FROM inbox)";
const FIND: &str = "SELECT body_json FROM inbox WHERE run_id = ?1 AND id = ?2";
const LIST: &str = "SELECT n, id, at, body_json FROM inbox WHERE run_id = ?1 ORDER BY n";

#[derive(Clone, Debug)]
pub struct NewLetter {
    pub project: ProjectId,
    pub run: RunId,
    /// The sender's id for the letter.
    pub id: String,
    pub at: Timestamp,
    pub body: JsonText,
}

/// An unread letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Position in the order.
    pub n: i64,
    /// The sender's id for the letter.
    pub id: String,
    /// When it was received.
    pub at: Timestamp,
    pub body: JsonText,
}

/// The bound on unread letters that applies to a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterRoom {
    /// A message to the run: up to a thousand.
    Data,
    /// A letter that controls the run: a hundred more.
    Control,
    /// No bound: the caller chooses an id under which at most one letter waits.
    Unbounded,
}

#[derive(Debug, thiserror::Error)]
pub enum InboxError {
    #[error("there is no such run")]
    NoRun,
    #[error("the run has finished")]
    Finished,
    #[error("more than {LETTERS_MAX} unread letters wait for the run")]
    Full,
    /// An unread letter has the same id and another text.
    #[error("a letter with the same id and different text already exists")]
    Different,
    #[error(transparent)]
    Store(#[from] Error),
}

/// Delivers a letter from one run to another. Each sender has one letter under one id at a time, so no bound is
/// needed.
pub(super) fn deliver(connection: &Connection, letter: &NewLetter) -> Result<(), Error> {
    let id = letter.run.as_str();
    if column::one(connection, IS_LIVE, (id, letter.project.as_str()), |_| Ok(()))?.is_some() {
        column::execute(connection, REPLACE, (id, &letter.id))?;
        write(connection, letter)?;
    }
    Ok(())
}

fn write(connection: &Connection, letter: &NewLetter) -> Result<(), Error> {
    let (id, at) = (letter.run.as_str(), column::millis(letter.at));
    column::execute(connection, INSERT, (id, &letter.id, at, letter.body.as_str()))?;
    blob::note_uses(connection, &letter.run, letter.body.as_str())?;
    column::execute(connection, WAKE, (id, at))?;
    Ok(())
}

impl Store {
    /// Stores a letter and wakes the run. A letter with a known id is stored once.
    pub async fn put_letter(&self, letter: NewLetter, room: LetterRoom) -> Result<(), InboxError> {
        let work = move |connection: &Connection| {
            let Some(run) = get::of_project(connection, &letter.project, &letter.run)? else {
                return Ok(Err(InboxError::NoRun));
            };
            if run.state == RunState::Finished {
                return Ok(Err(InboxError::Finished));
            }
            let id = letter.run.as_str();
            let known =
                column::one(connection, FIND, (id, &letter.id), |row| column::plain::<String>(row, "body_json"))?;
            match known {
                Some(body) if body != letter.body.as_str() => return Ok(Err(InboxError::Different)),
                Some(_) => {
                    write(connection, &letter)?;
                    return Ok(Ok(()));
                }
                None => {}
            }
            let waiting = column::one(connection, COUNT, [id], |row| column::number(row, "letters"))?.unwrap_or(0);
            let is_full = match room {
                LetterRoom::Data => waiting >= LETTERS_MAX,
                LetterRoom::Control => waiting >= LETTERS_MAX + CONTROL_MAX,
                LetterRoom::Unbounded => false,
            };
            if is_full {
                return Ok(Err(InboxError::Full));
            }
            write(connection, &letter)?;
            Ok(Ok(()))
        };
        self.write(Durability::Power, work).await?
    }

    /// Wakes every run that has unread letters, because an older version may have left them without waking the run.
    pub async fn wake_unread(&self, now: Timestamp) -> Result<usize, Error> {
        let work = move |connection: &Connection| column::execute(connection, WAKE_UNREAD, [column::millis(now)]);
        self.write(Durability::Process, work).await
    }

    /// Unread letters of a run, in order. They are deleted by the append that consumes them.
    pub async fn letters(&self, run: RunId) -> Result<Vec<Letter>, Error> {
        let work = move |connection: &Connection| {
            column::all(connection, LIST, [run.as_str()], |row| {
                Ok(Letter {
                    n: column::plain(row, "n")?,
                    id: column::plain(row, "id")?,
                    at: column::time(row, "at")?,
                    body: column::parsed(row, "body_json", JsonText::from_column)?,
                })
            })
        };
        self.read(work).await
    }
}
