//! Looking for a request that was made before, without making one.

use rusqlite::Connection;
use saggar_domain::{ProjectId, SandboxId, Timestamp};

use super::insert::{Idempotency, Insertion, find_earlier};
use crate::column;
use crate::error::Error;
use crate::store::Store;

const HAS_KEY: &str = "SELECT 1 AS found FROM idempotency WHERE sandbox_id = ?1 LIMIT 1";

impl Store {
    /// What this request came to before, if it was made before: never [`Insertion::Inserted`].
    pub async fn earlier_request(
        &self,
        project: ProjectId,
        idempotency: Idempotency,
        now: Timestamp,
    ) -> Result<Option<Insertion>, Error> {
        self.read(move |connection: &Connection| find_earlier(connection, &project, now, &idempotency)).await
    }

    /// Whether somebody can ask for this sandbox again by the key of the request that made it.
    pub async fn has_idempotency_key(&self, id: SandboxId) -> Result<bool, Error> {
        let work = move |connection: &Connection| {
            let found = column::one(connection, HAS_KEY, [id.as_str()], |row| column::plain::<i64>(row, "found"))?;
            Ok(found.is_some())
        };
        self.read(work).await
    }
}
