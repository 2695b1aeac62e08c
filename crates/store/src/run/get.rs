//! Reads one run, or a page of runs, newest first.

use std::collections::BTreeSet;

use rusqlite::Connection;
use saggar_domain::{Labels, ProjectId, RunId, RunState, Timestamp};

use super::{RunRow, columns, read};
use crate::column;
use crate::cursor::Cursor;
use crate::error::Error;
use crate::page::{Page, PageLimit};
use crate::store::Store;

const GET: &str = concat!("SELECT ", columns!(), " FROM run WHERE id = ?1 AND project_id = ?2 AND removed_at IS NULL");
const GET_ANY: &str = concat!("SELECT ", columns!(), " FROM run WHERE id = ?1 AND removed_at IS NULL");

/// The common part of the statements: ?1 the project, ?2 states, ?3 and ?4 the cursor, ?5 the oldest, ?6 labels, ?7
/// the limit, ?8 the agent, ?9 the parent.
macro_rules! list {
    ($index:literal, $where:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            " FROM run INDEXED BY ",
            $index,
            " WHERE project_id = ?1 AND ",
            $where,
            " AND removed_at IS NULL AND state IN (SELECT value FROM json_each(?2))
              AND NOT EXISTS (
                  SELECT 1 FROM json_each(?6) AS wanted WHERE NOT EXISTS (
                      SELECT 1 FROM json_each(run.labels_json) AS had
                      WHERE had.key = wanted.key AND had.value = wanted.value))
              AND (created_at, id) < (?3, ?4) AND created_at >= ?5
              ORDER BY created_at DESC, id DESC LIMIT ?7"
        )
    };
}

const LIST: &str = list!("run_by_project_and_age", "?8 IS NULL AND ?9 IS NULL");
const LIST_OF_AGENT: &str = list!("run_by_agent_and_age", "agent = ?8 AND ?9 IS NULL");
const LIST_CHILDREN: &str = list!("run_by_child_of", "child_of = ?9 AND (?8 IS NULL OR agent = ?8)");

#[derive(Clone, Debug)]
pub struct RunQuery {
    pub project: ProjectId,
    /// Empty means any state.
    pub states: BTreeSet<RunState>,
    pub agent: Option<String>,
    /// The run must have all of these labels.
    pub labels: Labels,
    /// Inclusive.
    pub since: Option<Timestamp>,
    /// Exclusive.
    pub before: Option<Timestamp>,
    /// Only children of this run.
    pub child_of: Option<RunId>,
    pub limit: PageLimit,
    pub cursor: Option<Cursor<RunId>>,
}

impl RunQuery {
    /// The first page of a project's runs.
    pub fn new(project: ProjectId) -> Self {
        Self {
            project,
            states: BTreeSet::new(),
            agent: None,
            labels: Labels::default(),
            since: None,
            before: None,
            child_of: None,
            limit: PageLimit::default(),
            cursor: None,
        }
    }
}

impl Store {
    /// A run of a project. Another project's run is reported as absent.
    pub async fn run(&self, project: ProjectId, id: RunId) -> Result<Option<RunRow>, Error> {
        self.read(move |connection| of_project(connection, &project, &id)).await
    }

    /// A run of any project, for the runtime itself.
    pub async fn run_of_any(&self, id: RunId) -> Result<Option<RunRow>, Error> {
        self.read(move |connection| any(connection, &id)).await
    }

    /// Newest first.
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
    let from_cursor = query.cursor.as_ref().map(|cursor| (column::millis(cursor.created_at), cursor.id.as_str()));
    let from_query = query.before.map(|before| (column::millis(before), ""));
    let (before, before_id) = from_cursor.into_iter().chain(from_query).min().unwrap_or((i64::MAX, ""));
    let params = (
        query.project.as_str(),
        column::to_json(states),
        before,
        before_id,
        query.since.map_or(0, column::millis),
        column::to_json(&query.labels),
        query.limit.and_one(),
        query.agent.as_deref(),
        query.child_of.as_ref().map(RunId::as_str),
    );
    let sql = match (&query.child_of, &query.agent) {
        (Some(_), _) => LIST_CHILDREN,
        (None, Some(_)) => LIST_OF_AGENT,
        (None, None) => LIST,
    };
    let rows = column::all(connection, sql, params, read)?;
    Ok(Page::cut(rows, query.limit, |row| Cursor { created_at: row.created_at, id: row.id.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_list_comes_in_order_from_the_index_made_for_it() {
        let lists = [
            (LIST, "run_by_project_and_age"),
            (LIST_OF_AGENT, "run_by_agent_and_age"),
            (LIST_CHILDREN, "run_by_child_of"),
        ];
        crate::query_plan::check_lists("run", ("prj", "[]", 0, "", 0, "{}", 1, "agent", "run"), &lists);
    }
}
