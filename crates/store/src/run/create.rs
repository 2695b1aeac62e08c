//! Inserts runs: a new run, once per idempotency key, or a fork of another.
//!
//! A fork is a pointer into its parent's history: its cost doesn't depend on the length of that history.

use rusqlite::Connection;
use saggar_domain::{Labels, ProjectId, RunId, Timestamp};

use super::{blob, get, sum};
use crate::column;
use crate::error::Error;
use crate::hash::RequestHash;
use crate::json_text::JsonText;
use crate::sandbox::{IDEMPOTENCY_RETENTION, Idempotency};
use crate::store::Store;
use crate::writer::Durability;

const INSERT: &str = "
    INSERT INTO run (id, project_id, agent, state, created_at, updated_at, head, wake_at, root_id, parent_id,
        parent_through, generation, child_of, child_of_step, labels_json, files_json)
    VALUES (?1, ?2, ?3, 'queued', ?4, ?4, ?5, ?4, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)";
const EXISTS: &str = "SELECT 1 AS is_there FROM run WHERE id = ?1";
const FIND_KEY: &str = "
    SELECT request_hash, run_id FROM run_request WHERE project_id = ?1 AND key = ?2 AND created_at > ?3";
const INSERT_KEY: &str = "
    INSERT INTO run_request (project_id, key, request_hash, run_id, created_at) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (project_id, key) DO UPDATE
    SET request_hash = excluded.request_hash, run_id = excluded.run_id, created_at = excluded.created_at";
const LAST_GENERATION: &str = "SELECT max(generation) AS generation FROM run WHERE root_id = ?1";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRun {
    pub id: RunId,
    pub project: ProjectId,
    pub agent: String,
    pub labels: Labels,
    pub created_at: Timestamp,
    /// Its first entry.
    pub first: String,
    /// The run that starts it, and the step of that run that waits for it.
    pub child_of: Option<(RunId, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunInsertion {
    Inserted,
    /// The request was made before, and created this run.
    Replayed(RunId),
    /// The key was used for a different request.
    Mismatch,
}

#[derive(Clone, Debug)]
pub struct Fork {
    pub project: ProjectId,
    pub parent: RunId,
    /// The last entry of the parent that the fork includes.
    pub through: u64,
    /// The new run.
    pub id: RunId,
    pub created_at: Timestamp,
    /// The files that it begins with, if they are in a snapshot.
    pub files: Option<JsonText>,
}

#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    #[error("there is no such run")]
    NoParent,
    #[error("the run has no entry {0}")]
    NoSuchEntry(u64),
    #[error(transparent)]
    Store(#[from] Error),
}

impl Store {
    /// Inserts a run that is due at once.
    pub async fn create_run(&self, new: NewRun, idempotency: Option<Idempotency>) -> Result<RunInsertion, Error> {
        let work = move |connection: &Connection| {
            if let Some(idempotency) = &idempotency
                && let Some(earlier) = find_earlier(connection, &new, idempotency)?
            {
                return Ok(earlier);
            }
            insert(connection, &new, None, &new.id, 0, 1, None)?;
            if let Some(idempotency) = &idempotency {
                let params = (
                    new.project.as_str(),
                    idempotency.key.as_str(),
                    idempotency.request_hash.as_bytes(),
                    new.id.as_str(),
                    column::millis(new.created_at),
                );
                column::execute(connection, INSERT_KEY, params)?;
            }
            Ok(RunInsertion::Inserted)
        };
        self.write(Durability::Power, work).await
    }

    /// Inserts a fork that is due at once. `first` makes its first entry, given its generation and number.
    pub async fn fork_run<F>(&self, fork: Fork, first: F) -> Result<u32, ForkError>
    where
        F: Fn(u32, u64) -> String + Send + 'static,
    {
        let work = move |connection: &Connection| {
            let Some(parent) = get::of_project(connection, &fork.project, &fork.parent)? else {
                return Ok(Err(ForkError::NoParent));
            };
            if fork.through == 0 || fork.through > parent.head {
                return Ok(Err(ForkError::NoSuchEntry(fork.through)));
            }
            let last = column::one(connection, LAST_GENERATION, [parent.root.as_str()], |row| {
                column::plain::<u32>(row, "generation")
            })?;
            let (generation, seq) = (last.unwrap_or(0) + 1, fork.through + 1);
            let new = NewRun {
                id: fork.id.clone(),
                project: fork.project.clone(),
                agent: parent.agent.clone(),
                labels: parent.labels.clone(),
                created_at: fork.created_at,
                first: first(generation, seq),
                child_of: None,
            };
            let from = Some((&parent.id, fork.through));
            insert(connection, &new, from, &parent.root, generation, seq, fork.files.as_ref())?;
            Ok(Ok(generation))
        };
        self.write(Durability::Power, work).await?
    }
}

/// Inserts a child. Its id is derived from the step that starts it, so an existing run with that id is the same
/// child.
pub(super) fn insert_child(connection: &Connection, new: &NewRun) -> Result<(), Error> {
    match column::one(connection, EXISTS, [new.id.as_str()], |_| Ok(()))? {
        Some(()) => Ok(()),
        None => insert(connection, new, None, &new.id, 0, 1, None),
    }
}

fn find_earlier(
    connection: &Connection,
    new: &NewRun,
    idempotency: &Idempotency,
) -> Result<Option<RunInsertion>, Error> {
    let oldest = new.created_at.before(IDEMPOTENCY_RETENTION);
    let params = (new.project.as_str(), idempotency.key.as_str(), column::millis(oldest));
    column::one(connection, FIND_KEY, params, |row| {
        let is_same = RequestHash::from_bytes(column::plain(row, "request_hash")?) == idempotency.request_hash;
        let run = column::parsed(row, "run_id", RunId::parse)?;
        Ok(if is_same { RunInsertion::Replayed(run) } else { RunInsertion::Mismatch })
    })
}

fn insert(
    connection: &Connection,
    new: &NewRun,
    parent: Option<(&RunId, u64)>,
    root: &RunId,
    generation: u32,
    seq: u64,
    files: Option<&JsonText>,
) -> Result<(), Error> {
    let first = &new.first;
    let params = (
        new.id.as_str(),
        new.project.as_str(),
        &new.agent,
        column::millis(new.created_at),
        column::count(seq),
        root.as_str(),
        parent.map(|(parent, _)| parent.as_str()),
        parent.map(|(_, through)| column::count(through)),
        generation,
        new.child_of.as_ref().map(|(parent, _)| parent.as_str()),
        new.child_of.as_ref().map(|(_, step)| column::count(*step)),
        column::to_json(&new.labels),
        files.map(JsonText::as_str),
    );
    column::execute(connection, INSERT, params).map_err(|error| match error {
        Error::Taken { .. } => error.naming("a run of that id"),
        other => other.naming("the project"),
    })?;
    sum::insert(connection, new.id.as_str(), seq, first, sum::of(&new.id, seq, first))?;
    blob::note_uses_of_first(connection, &new.id, first)
}
