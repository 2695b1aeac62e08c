//! Lists sandboxes, newest first, one page at a time.
//!
//! A page begins after the cursor's age and id, so insertions and deletions in between neither repeat nor hide other
//! rows.

use std::collections::BTreeSet;

use rusqlite::Connection;
use saggar_domain::{Labels, ProjectId, SandboxId, SandboxState};

use super::{Sandbox, columns, read};
use crate::column;
use crate::cursor::{Cursor, SandboxCursor};
use crate::error::Error;
use crate::page::{Page, PageLimit};
use crate::store::Store;

/// The common part of the four statements: ?1 states, ?2 labels, ?3 and ?4 the cursor, ?5 the limit, ?6 the project.
macro_rules! list {
    ($where:literal) => {
        concat!(
            "SELECT ",
            columns!(),
            " FROM sandbox WHERE ",
            $where,
            " AND state IN (SELECT value FROM json_each(?1))
              AND NOT EXISTS (
                  SELECT 1 FROM json_each(?2) AS wanted WHERE NOT EXISTS (
                      SELECT 1 FROM json_each(sandbox.labels_json) AS had
                      WHERE had.key = wanted.key AND had.value = wanted.value))
              AND (created_at, id) < (?3, ?4)
              ORDER BY created_at DESC, id DESC LIMIT ?5"
        )
    };
}

// Most rows of the table are ended sandboxes. Lists of live ones have an index without them, which SQLite uses only
// if the statement's text has the same condition.
const LIST: &str = list!("project_id = ?6");
const LIST_LIVE: &str = list!("project_id = ?6 AND state <> 'ended'");
const LIST_ALL: &str = list!("?6 IS NULL");
const LIST_ALL_LIVE: &str = list!("?6 IS NULL AND state <> 'ended'");

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    Project(ProjectId),
    /// All projects: for the runtime itself.
    All,
}

impl Scope {
    pub(super) fn project(&self) -> Option<&str> {
        match self {
            Self::Project(project) => Some(project.as_str()),
            Self::All => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxQuery {
    pub scope: Scope,
    /// Empty means any state.
    pub states: BTreeSet<SandboxState>,
    /// The sandbox must have all of these labels.
    pub labels: Labels,
    pub limit: PageLimit,
    pub cursor: Option<SandboxCursor>,
}

impl SandboxQuery {
    /// The first page of everything in scope.
    pub fn new(scope: Scope) -> Self {
        Self { scope, states: BTreeSet::new(), labels: Labels::default(), limit: PageLimit::default(), cursor: None }
    }

    /// Only sandboxes that have not ended.
    pub fn live(mut self) -> Self {
        self.states = SandboxState::ALL.iter().copied().filter(|state| state.is_live()).collect();
        self
    }
}

impl Store {
    /// Newest first.
    pub async fn sandboxes(&self, query: SandboxQuery) -> Result<Page<Sandbox, SandboxId>, Error> {
        self.read(move |connection| list(connection, &query)).await
    }
}

fn list(connection: &Connection, query: &SandboxQuery) -> Result<Page<Sandbox, SandboxId>, Error> {
    let any: BTreeSet<SandboxState> = SandboxState::ALL.iter().copied().collect();
    let states = if query.states.is_empty() { &any } else { &query.states };
    let is_live = states.iter().all(|state| state.is_live());
    let sql = match (&query.scope, is_live) {
        (Scope::Project(_), false) => LIST,
        (Scope::Project(_), true) => LIST_LIVE,
        (Scope::All, false) => LIST_ALL,
        (Scope::All, true) => LIST_ALL_LIVE,
    };
    let (before, before_id) = match &query.cursor {
        Some(cursor) => (column::millis(cursor.created_at), cursor.id.as_str()),
        None => (i64::MAX, ""),
    };
    let params = (
        column::to_json(states),
        column::to_json(&query.labels),
        before,
        before_id,
        query.limit.and_one(),
        query.scope.project(),
    );
    let items = column::all(connection, sql, params, read)?;
    Ok(Page::cut(items, query.limit, |last| Cursor { created_at: last.asked.created_at, id: last.asked.id.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_list_comes_in_order_from_the_index_made_for_it() {
        let lists = [
            (LIST, "sandbox_by_project_and_age"),
            (LIST_LIVE, "sandbox_live_by_project"),
            (LIST_ALL, "sandbox_by_age"),
            (LIST_ALL_LIVE, "sandbox_live"),
        ];
        crate::query_plan::check_lists("sandbox", ("[]", "{}", 0, "", 1, "prj"), &lists);
    }
}
