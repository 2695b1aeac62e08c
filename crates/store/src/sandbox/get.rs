//! Reads one sandbox, and counts sandboxes.

use std::collections::BTreeMap;

use saggar_domain::{ProjectId, SandboxId, SandboxState};

use super::{Sandbox, Scope, columns, read};
use crate::column;
use crate::error::Error;
use crate::store::Store;

const GET: &str = concat!("SELECT ", columns!(), " FROM sandbox WHERE id = ?1 AND project_id = ?2");
const GET_ANY: &str = concat!("SELECT ", columns!(), " FROM sandbox WHERE id = ?1");
const COUNT: &str = "SELECT state, count(*) AS sandboxes FROM sandbox WHERE project_id = ?1 GROUP BY state";
const COUNT_ALL: &str = "SELECT state, count(*) AS sandboxes FROM sandbox WHERE ?1 IS NULL GROUP BY state";

impl Store {
    /// A sandbox of a project. Another project's sandbox is reported as absent.
    pub async fn sandbox(&self, project: ProjectId, id: SandboxId) -> Result<Option<Sandbox>, Error> {
        self.read(move |connection| column::one(connection, GET, (id.as_str(), project.as_str()), read)).await
    }

    /// A sandbox of any project: for the runtime itself, and for requests with their own proof (a token, a
    /// signature).
    pub async fn sandbox_of_any(&self, id: SandboxId) -> Result<Option<Sandbox>, Error> {
        self.read(move |connection| column::one(connection, GET_ANY, [id.as_str()], read)).await
    }

    /// Number of sandboxes in each state; states without any are left out.
    pub async fn count_sandboxes(&self, scope: Scope) -> Result<BTreeMap<SandboxState, u64>, Error> {
        let work = move |connection: &rusqlite::Connection| {
            let sql = match scope {
                Scope::Project(_) => COUNT,
                Scope::All => COUNT_ALL,
            };
            let counts = column::all(connection, sql, [scope.project()], |row| {
                Ok((column::parsed(row, "state", SandboxState::parse)?, column::number(row, "sandboxes")?))
            })?;
            Ok(counts.into_iter().collect())
        };
        self.read(work).await
    }
}
