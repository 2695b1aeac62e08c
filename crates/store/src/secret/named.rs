//! Finds secrets of all projects by how their names begin.

use saggar_domain::secret::SecretName;
use saggar_domain::{ProjectId, Timestamp};

use crate::column;
use crate::error::Error;
use crate::store::Store;

/// How many are found at once.
const NAMED_MAX: u32 = 1_000;
const NAMED: &str = "
    SELECT project_id, name FROM secret WHERE substr(name, 1, length(?1)) = ?1 AND updated_at < ?2
    ORDER BY updated_at, project_id, name LIMIT ?3 OFFSET ?4";

impl Store {
    /// Those that were last changed before that time, oldest first, without the first `skipped` ones.
    pub async fn secrets_named(
        &self,
        prefix: &'static str,
        before: Timestamp,
        skipped: u32,
    ) -> Result<Vec<(ProjectId, SecretName)>, Error> {
        self.read(move |connection| {
            column::all(connection, NAMED, (prefix, column::millis(before), NAMED_MAX, skipped), |row| {
                let project = column::parsed(row, "project_id", ProjectId::parse)?;
                Ok((project, column::parsed(row, "name", SecretName::parse)?))
            })
        })
        .await
    }
}
