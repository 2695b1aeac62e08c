//! Changing the sealing key: first the fence, then the rows, a few at a time.
//!
//! The process that changes the key may die after any step. A row then has the earlier key or the new one, and both are
//! still in the key file.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::put::sealing_key;
use super::{Sealed, SealedSecret, SealingKeyId, columns, read_sealed};
use crate::column;
use crate::error::Error;
use crate::meta::MetaKey;
use crate::store::Store;
use crate::writer::Durability;

/// Rows that are resealed at once: at most 4 MiB of values.
const BATCH: u32 = 64;

const UNDER_OTHERS: &str =
    concat!("SELECT ", columns!(), ", sealed FROM secret WHERE key_id <> ?1 ORDER BY project_id, name LIMIT ?2");
const RESEAL: &str = "
    UPDATE secret SET key_id = ?5, sealed = ?6
    WHERE project_id = ?1 AND name = ?2 AND version = ?3 AND key_id = ?4";
const BY_KEY: &str = "SELECT key_id, count(*) AS secrets FROM secret GROUP BY key_id";

impl Store {
    /// From now on, only values that are sealed with this key are written.
    pub async fn set_sealing_key(&self, key: SealingKeyId) -> Result<(), Error> {
        self.set_meta(MetaKey::SealingKeyId, key.as_str().to_owned()).await
    }

    /// Some secrets that are sealed with other keys than this one; none when all have been resealed.
    pub async fn secrets_under_other_keys(&self, key: SealingKeyId) -> Result<Vec<SealedSecret>, Error> {
        self.read(move |connection| column::all(connection, UNDER_OTHERS, (key.as_str(), BATCH), read_sealed)).await
    }

    /// Replaces seals, in one transaction. One whose secret was changed or removed meanwhile is left out. `false` if `key`
    /// is no longer the sealing key: then nothing is written.
    pub async fn reseal_secrets(&self, key: SealingKeyId, again: Vec<(SealedSecret, Sealed)>) -> Result<bool, Error> {
        let work = move |connection: &Connection| {
            if sealing_key(connection)?.as_ref() != Some(&key) {
                return Ok(false);
            }
            for (secret, sealed) in &again {
                let row = &secret.row;
                let params = (
                    row.project.as_str(),
                    row.name.as_str(),
                    column::count(row.version),
                    row.key.as_str(),
                    key.as_str(),
                    &sealed.0,
                );
                column::execute(connection, RESEAL, params)?;
            }
            Ok(true)
        };
        self.write(Durability::Power, work).await
    }

    /// The keys that values are sealed with, each with their number.
    pub async fn sealing_keys_in_use(&self) -> Result<BTreeMap<SealingKeyId, u64>, Error> {
        let read = |connection: &Connection| {
            let keys = column::all(connection, BY_KEY, [], |row| {
                Ok((column::parsed(row, "key_id", SealingKeyId::parse)?, column::number(row, "secrets")?))
            })?;
            Ok(keys.into_iter().collect())
        };
        self.read(read).await
    }
}
