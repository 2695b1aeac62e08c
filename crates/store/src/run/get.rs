//! Reading runs: one, or a page of them, newest first.

use std::collections::BTreeSet;

use rusqlite::Connection;
use saggar_domain::{ProjectId, RunId, RunState};

use super::{RunRow, columns, read};
use crate::column;
use crate::cursor::Cursor;
use crate::error::Error;
use crate::page::{Page, PageLimit};
use crate::store::Store;

const GET: &str = concat!("SELECT ", columns!(), " FROM run WHERE id = ?1 AND project_id = ?2");
const GET_ANY: &str = concat!("SELECT ", columns!(), " FROM run WHERE id = ?1");
const LIST: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM run WHERE project_id = ?1 AND state IN (SELECT value FROM json_each(?2)) AND (created_at, id) < (?3, ?4)
      ORDER BY created_at DESC, id DESC LIMIT ?5"
);

const LIST_CHILDREN: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM run WHERE child_of = ?6 AND project_id = ?1 AND state IN (SELECT value FROM json_each(?2))
        AND (created_at, id) < (?3, ?4)
      ORDER BY created_at DESC, id DESC LIMIT ?5"
);

/// Which runs.
#[derive(Clone, Debug)]
pub struct RunQuery {
    /// Whose.
    pub project: ProjectId,
    /// In one of these states; empty means in any.
    pub states: BTreeSet<RunState>,
    /// Only those that this one started.
    pub child_of: Option<RunId>,
    /// At most so many.
    pub limit: PageLimit,
    /// After this one.
    pub cursor: Option<Cursor<RunId>>,
}

impl Store {
    /// A run of a project. Another project's is as absent as one that never was.
    pub async fn run(&self, project: ProjectId, id: RunId) -> Result<Option<RunRow>, Error> {
        self.read(move |connection| of_project(connection, &project, &id)).await
    }

    /// A run, whosever it is: for the runtime itself.
    pub async fn run_of_any(&self, id: RunId) -> Result<Option<RunRow>, Error> {
        self.read(move |connection| any(connection, &id)).await
    }

    /// A page of runs, newest first.
    pub async fn runs(&self, query: RunQuery) -> Result<Page<RunRow, RunId>, Error> {
        self.read(move |connection| list(connection, &query)).await
    }
}

pub(crate) fn any(connection: &Connection, id: &RunId) -> Result<Option<RunRow>, Error> {
    column::one(connection, GET_ANY, [id.as_str()], read)
}

pub(super) fn of_project(connection: &Connection, project: &ProjectId, id: &RunId) -> Result<Option<RunRow>, Error> {
    column::one(connection, GET, (id.as_str(), project.as_str()), read)
}

fn list(connection: &Connection, query: &RunQuery) -> Result<Page<RunRow, RunId>, Error> {
    let any: BTreeSet<RunState> = RunState::ALL.iter().copied().collect();
    let states = if query.states.is_empty() { &any } else { &query.states };
    let (before, before_id) = match &query.cursor {
        Some(cursor) => (column::millis(cursor.created_at), cursor.id.as_str()),
        None => (i64::MAX, ""),
    };
    let (project, states, limit) = (query.project.as_str(), column::to_json(states), query.limit.and_one());
    let rows = match &query.child_of {
        None => column::all(connection, LIST, (project, states, before, before_id, limit), read)?,
        Some(parent) => {
            let params = (project, states, before, before_id, limit, parent.as_str());
            column::all(connection, LIST_CHILDREN, params, read)?
        }
    };
    Ok(Page::cut(rows, query.limit, |row| Cursor { created_at: row.created_at, id: row.id.clone() }))
}
