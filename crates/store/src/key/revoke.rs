//! Revokes a key. It is invalid when this returns, and stays in the list as revoked.

use saggar_domain::{KeyId, ProjectId, Timestamp};

use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

const REVOKE: &str = "UPDATE api_key SET revoked_at = coalesce(revoked_at, ?3) WHERE project_id = ?1 AND id = ?2";

/// Whether the key existed. Revoking it twice is harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revoked {
    /// The key is invalid now.
    Done,
    /// The project has no such key.
    Absent,
}

impl Store {
    pub async fn revoke_key(&self, project: ProjectId, key: KeyId, now: Timestamp) -> Result<Revoked, Error> {
        let work = move |connection: &rusqlite::Connection| {
            let params = (project.as_str(), key.as_str(), column::millis(now));
            let touched = column::execute(connection, REVOKE, params)?;
            Ok(if touched == 0 { Revoked::Absent } else { Revoked::Done })
        };
        self.write(Durability::Power, work).await
    }
}
