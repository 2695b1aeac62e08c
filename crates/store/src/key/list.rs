//! Lists the keys of a project, including revoked and expired ones.

use saggar_domain::ProjectId;

use super::{ApiKey, KEYS_PER_PROJECT_MAX, read};
use crate::column;
use crate::error::Error;
use crate::store::Store;

const LIST: &str = "
    SELECT id, project_id, name, prefix, permissions, created_at, expires_at, revoked_at, last_used_at
    FROM api_key WHERE project_id = ?1 ORDER BY created_at DESC, id DESC LIMIT ?2";

impl Store {
    /// Newest first.
    pub async fn keys(&self, project: ProjectId) -> Result<Vec<ApiKey>, Error> {
        self.read(move |connection| column::all(connection, LIST, (project.as_str(), KEYS_PER_PROJECT_MAX), read)).await
    }
}
