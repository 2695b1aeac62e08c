//! The inbox of a run: what people say to it. Durable before it is acknowledged, the same id once, and taken by whoever holds the run.

use rusqlite::Connection;
use saggar_domain::{ProjectId, RunId, RunState, Timestamp};

use super::{blob, get};
use crate::column;
use crate::error::Error;
use crate::json_text::JsonText;
use crate::store::Store;
use crate::writer::Durability;

/// Most letters that wait for one run.
const LETTERS_MAX: u64 = 1000;
/// Room beyond that for letters that steer the run, so that what is said to it never keeps them out.
const CONTROL_MAX: u64 = 100;

const COUNT: &str = "SELECT count(*) AS letters FROM inbox WHERE run_id = ?1";
const INSERT: &str = "
    INSERT INTO inbox (run_id, id, at, body_json) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (run_id, id) DO NOTHING";
/// Whoever sleeps until later, or for ever, is woken.
const WAKE: &str = "UPDATE run SET wake_at = min(coalesce(wake_at, ?2), ?2) WHERE id = ?1 AND state <> 'finished'";
/// A run's word to another takes the place of its word before, under a number of its own: who has read that one has not read this.
const REPLACE: &str = "DELETE FROM inbox WHERE run_id = ?1 AND id = ?2";
const IS_LIVE: &str = "SELECT 1 AS is_live FROM run WHERE id = ?1 AND project_id = ?2 AND state <> 'finished'";
const WAKE_UNREAD: &str = "
    UPDATE run SET wake_at = min(coalesce(wake_at, ?1), ?1)
    WHERE state <> 'finished' AND id IN (SELECT run_id FROM inbox)";
const FIND: &str = "SELECT body_json FROM inbox WHERE run_id = ?1 AND id = ?2";
const LIST: &str = "SELECT n, id, at, body_json FROM inbox WHERE run_id = ?1 ORDER BY n";

/// Something said to a run.
#[derive(Clone, Debug)]
pub struct NewLetter {
    pub project: ProjectId,
    pub run: RunId,
    /// The sender's name for it.
    pub id: String,
    pub at: Timestamp,
    pub body: JsonText,
}

/// A letter that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// Its place in the order.
    pub n: i64,
    /// The sender's name for it.
    pub id: String,
    /// When it came.
    pub at: Timestamp,
    pub body: JsonText,
}

/// How many letters may wait before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterRoom {
    /// Something said to the run: the first thousand.
    Data,
    /// Something that steers the run: a hundred more.
    Control,
    /// No bound: the caller gives it an id of which one can wait.
    Unbounded,
}

/// Why a letter was not taken.
#[derive(Debug, thiserror::Error)]
pub enum InboxError {
    /// There is no such run.
    #[error("there is no such run")]
    NoRun,
    /// It is over.
    #[error("the run has finished")]
    Finished,
    /// Too many wait.
    #[error("more than {LETTERS_MAX} letters wait for the run")]
    Full,
    /// A letter with the same id and another text waits.
    #[error("a letter with the same id says something else")]
    Different,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] Error),
}

/// Delivers what a run says to another. Each sender has one letter under one id at a time, so there is no bound to be reached.
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
    /// Writes down something said to a run, and wakes it. The same id twice is once.
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

    /// Wakes every run that has unread letters: whoever left them may have been an older program.
    pub async fn wake_unread(&self, now: Timestamp) -> Result<usize, Error> {
        let work = move |connection: &Connection| column::execute(connection, WAKE_UNREAD, [column::millis(now)]);
        self.write(Durability::Process, work).await
    }

    /// What waits for a run, in order. It goes with the append that answers it.
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
