//! Looks up an earlier request, without making one.

use rusqlite::Connection;
use saggar_domain::{ProjectId, SandboxId, Timestamp};

use super::insert::{Idempotency, Insertion, find_earlier};
use crate::column;
use crate::error::Error;
use crate::store::Store;

const HAS_KEY: &str = "SELECT 1 AS found FROM idempotency WHERE sandbox_id = ?1 LIMIT 1";

impl Store {
    /// The result of an earlier identical request, if there was one: never [`Insertion::Inserted`].
    pub async fn earlier_request(
        &self,
        project: ProjectId,
        idempotency: Idempotency,
        now: Timestamp,
    ) -> Result<Option<Insertion>, Error> {
        self.read(move |connection: &Connection| find_earlier(connection, &project, now, &idempotency)).await
    }

    /// Whether a client can request this sandbox again with the idempotency key that created it.
    pub async fn has_idempotency_key(&self, id: SandboxId) -> Result<bool, Error> {
        let work = move |connection: &Connection| {
            let found = column::one(connection, HAS_KEY, [id.as_str()], |row| column::plain::<i64>(row, "found"))?;
            Ok(found.is_some())
        };
        self.read(work).await
    }
}
