//! Removes a secret, and finds the live sandboxes that use one.

use rusqlite::Connection;
use saggar_domain::secret::SecretName;
use saggar_domain::{Draft, ProjectId, SandboxId};

use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

const REMOVE: &str = "DELETE FROM secret WHERE project_id = ?1 AND name = ?2";
const EXISTS: &str = "SELECT 1 AS found FROM secret WHERE project_id = ?1 AND name = ?2";
const LIVE: &str = "
    SELECT id, spec_json FROM sandbox WHERE project_id = ?1 AND state <> 'ended' ORDER BY created_at, id";

/// What to do with a secret that live sandboxes use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileUsed {
    Refuse,
    Remove,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Removed {
    /// It is gone. These live sandboxes used it.
    Done(Vec<SandboxId>),
    Absent,
    /// Nothing was removed, because these live sandboxes use it.
    InUse(Vec<SandboxId>),
}

impl Store {
    pub async fn remove_secret(
        &self,
        project: ProjectId,
        name: SecretName,
        while_used: WhileUsed,
    ) -> Result<Removed, Error> {
        let work = move |connection: &Connection| {
            let place = (project.as_str(), name.as_str());
            if column::one(connection, EXISTS, place, |row| column::number(row, "found"))?.is_none() {
                return Ok(Removed::Absent);
            }
            let users = users(connection, &project, &name)?;
            if while_used == WhileUsed::Refuse && !users.is_empty() {
                return Ok(Removed::InUse(users));
            }
            column::execute(connection, REMOVE, place)?;
            Ok(Removed::Done(users))
        };
        self.write(Durability::Power, work).await
    }

    /// The live sandboxes of a project that use a secret, oldest first. Their number is bounded by the server's capacity.
    pub async fn secret_users(&self, project: ProjectId, name: SecretName) -> Result<Vec<SandboxId>, Error> {
        self.read(move |connection| users(connection, &project, &name)).await
    }
}

fn users(connection: &Connection, project: &ProjectId, name: &SecretName) -> Result<Vec<SandboxId>, Error> {
    let found = column::all(connection, LIVE, [project.as_str()], |row| {
        let spec: Draft = column::json(row, "spec_json")?;
        let is_user = spec.secrets.iter().any(|used| used.name == *name);
        Ok((column::parsed(row, "id", SandboxId::parse)?, is_user))
    })?;
    Ok(found.into_iter().filter_map(|(id, is_user)| is_user.then_some(id)).collect())
}
