//! Reads secrets with their sealed values.

use saggar_domain::ProjectId;
use saggar_domain::secret::SecretName;

use super::{SealedSecret, columns, read_sealed};
use crate::column;
use crate::error::Error;
use crate::store::Store;

const GET: &str = concat!("SELECT ", columns!(), ", sealed FROM secret WHERE project_id = ?1 AND name = ?2");

impl Store {
    /// A secret of a project. Another project's secret is reported as absent.
    pub async fn secret(&self, project: ProjectId, name: SecretName) -> Result<Option<SealedSecret>, Error> {
        self.read(move |connection| column::one(connection, GET, (project.as_str(), name.as_str()), read_sealed)).await
    }
}
