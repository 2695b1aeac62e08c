//! Which runs of a project need which snapshots, as far as their rows say.

use saggar_domain::{ProjectId, RunId};

use crate::column;
use crate::error::Error;
use crate::json_text::JsonText;
use crate::store::Store;

const OF_PROJECT: &str = "
    SELECT id, files_json FROM run
    WHERE project_id = ?1 AND removed_at IS NULL AND files_json IS NOT NULL";
const IS_OPEN: &str = "SELECT 1 AS is_there FROM run WHERE id = ?1 AND removed_at IS NULL AND state <> 'finished'";

/// The files of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilesOfRun {
    pub run: RunId,
    pub files: JsonText,
}

impl Store {
    /// The files of all runs of a project that have any.
    pub async fn files_of_runs(&self, project: ProjectId) -> Result<Vec<FilesOfRun>, Error> {
        self.read(move |connection| {
            column::all(connection, OF_PROJECT, [project.as_str()], |row| {
                Ok(FilesOfRun {
                    run: column::parsed(row, "id", RunId::parse)?,
                    files: column::parsed(row, "files_json", JsonText::from_column)?,
                })
            })
        })
        .await
    }

    /// Whether a run exists and isn't over.
    pub async fn is_run_open(&self, id: RunId) -> Result<bool, Error> {
        self.read(move |connection| Ok(column::one(connection, IS_OPEN, [id.as_str()], |_| Ok(()))?.is_some())).await
    }
}
