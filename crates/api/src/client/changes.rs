//! What an ended sandbox changed in a directory of the server's host.

use saggar_domain::SandboxId;

use super::error::Error;
use super::send::Client;
use crate::changes::{AppliedChanges, ApplyChanges, ChangeDiffQuery, ChangeDiffs, ChangeList};
use crate::route;

impl Client {
    /// The changes that are kept.
    pub async fn list_changes(&self, id: &SandboxId) -> Result<ChangeList, Error> {
        self.get(&path(route::CHANGES, id)).value().await
    }

    /// Compares them with the directory.
    pub async fn diff_changes(&self, id: &SandboxId, query: &ChangeDiffQuery) -> Result<ChangeDiffs, Error> {
        self.get(&path(route::CHANGES_DIFF, id)).query(query).value().await
    }

    /// Applies them to the directory.
    pub async fn apply_changes(&self, id: &SandboxId, apply: &ApplyChanges) -> Result<AppliedChanges, Error> {
        self.post(&path(route::CHANGES_APPLY, id)).json(apply).value().await
    }

    /// Forgets them.
    pub async fn drop_changes(&self, id: &SandboxId) -> Result<(), Error> {
        self.post(&path(route::CHANGES_DROP, id)).done().await
    }
}

fn path(route: &str, id: &SandboxId) -> String {
    route.replace("{id}", id.as_str())
}
