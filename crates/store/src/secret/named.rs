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
    ORDER BY updated_at LIMIT ?3";

impl Store {
    /// Those that were last changed before that time, oldest first.
    pub async fn secrets_named(
        &self,
        prefix: &'static str,
        before: Timestamp,
    ) -> Result<Vec<(ProjectId, SecretName)>, Error> {
        self.read(move |connection| {
            column::all(connection, NAMED, (prefix, column::millis(before), NAMED_MAX), |row| {
                let project = column::parsed(row, "project_id", ProjectId::parse)?;
                Ok((project, column::parsed(row, "name", SecretName::parse)?))
            })
        })
        .await
    }
}
