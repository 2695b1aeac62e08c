//! Checks a secret, once per request.
//!
//! One lookup in an index on the hash, whether or not the key exists. The time of the lookup reveals nothing about a
//! secret, because a client can't control its hash; the comparison afterwards takes constant time anyway.

use std::time::Duration;

use rusqlite::Connection;
use saggar_domain::{KeyId, Timestamp};

use super::{ApiKey, KeySecret, read};
use crate::column;
use crate::error::Error;
use crate::hash::KeyHash;
use crate::store::Store;

/// Resolution of `last_used_at`, so that a busy key doesn't cause a write per request.
const USE_INTERVAL: Duration = Duration::from_secs(60);

const FIND: &str = "
    SELECT id, project_id, name, prefix, hash, permissions, created_at, expires_at, revoked_at, last_used_at
    FROM api_key WHERE hash = ?1";
const TOUCH: &str = "
    UPDATE api_key SET last_used_at = ?2 WHERE id = ?1 AND (last_used_at IS NULL OR last_used_at <= ?3)";

/// The result of a check. Clients must only learn whether a key is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyCheck {
    Valid(ApiKey),
    /// No key has this secret.
    Unknown,
    Expired(KeyId),
    Revoked(KeyId),
}

impl Store {
    /// Checks a secret and records its use (at most once a minute, without waiting for the write).
    pub async fn check_key(&self, secret: &KeySecret, now: Timestamp) -> Result<KeyCheck, Error> {
        let hash = secret.hash();
        let found = self.read(move |connection| find(connection, &hash)).await?;
        let Some(key) = found else { return Ok(KeyCheck::Unknown) };
        if key.revoked_at.is_some() {
            return Ok(KeyCheck::Revoked(key.id));
        }
        if key.expires_at.is_some_and(|expires_at| expires_at <= now) {
            return Ok(KeyCheck::Expired(key.id));
        }
        if key.last_used_at.is_none_or(|last| last <= now.before(USE_INTERVAL)) {
            let id = key.id.clone();
            self.offer(move |connection| touch(connection, &id, now));
        }
        Ok(KeyCheck::Valid(key))
    }
}

fn find(connection: &Connection, hash: &KeyHash) -> Result<Option<ApiKey>, Error> {
    let found = column::one(connection, FIND, [hash.as_bytes()], |row| {
        Ok((KeyHash::from_bytes(column::plain(row, "hash")?), read(row)?))
    })?;
    Ok(found.and_then(|(stored, key)| stored.is_same(hash).then_some(key)))
}

fn touch(connection: &Connection, id: &KeyId, now: Timestamp) -> Result<(), Error> {
    let params = (id.as_str(), column::millis(now), column::millis(now.before(USE_INTERVAL)));
    column::execute(connection, TOUCH, params)?;
    Ok(())
}
