//! Lists the secrets of a project, without their values.

use saggar_domain::ProjectId;

use super::{SECRETS_PER_PROJECT_MAX, SecretRow, columns, read};
use crate::column;
use crate::error::Error;
use crate::store::Store;

const LIST: &str = concat!("SELECT ", columns!(), " FROM secret WHERE project_id = ?1 ORDER BY name LIMIT ?2");

impl Store {
    /// By name.
    pub async fn secrets(&self, project: ProjectId) -> Result<Vec<SecretRow>, Error> {
        let most = SECRETS_PER_PROJECT_MAX;
        self.read(move |connection| column::all(connection, LIST, (project.as_str(), most), read)).await
    }
}
