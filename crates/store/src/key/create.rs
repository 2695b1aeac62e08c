//! Creates keys.

use rusqlite::Connection;
use saggar_domain::{KeyId, ProjectId, Timestamp};

use super::{ApiKey, KEYS_PER_PROJECT_MAX, KeyName, KeySecret, Permissions};
use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

const INSERT: &str = "
    INSERT INTO api_key (id, project_id, name, prefix, hash, permissions, created_at, expires_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

const COUNT: &str = "SELECT count(*) AS keys FROM api_key WHERE project_id = ?1";
const FORGET_ONE: &str = "
    DELETE FROM api_key WHERE id IN (
        SELECT id FROM api_key WHERE project_id = ?1 AND (revoked_at IS NOT NULL OR expires_at <= ?2)
        ORDER BY created_at LIMIT 1)";

#[derive(Clone, Debug)]
pub struct NewKey {
    pub id: KeyId,
    /// The project it acts for.
    pub project: ProjectId,
    pub name: KeyName,
    pub permissions: Permissions,
    pub created_at: Timestamp,
    /// When it becomes invalid.
    pub expires_at: Option<Timestamp>,
}

impl Store {
    /// Creates a key and returns its secret, which can't be read again later. If the project has too many keys, the
    /// oldest invalid one is deleted. [`Error::Missing`] if the project doesn't exist.
    pub async fn create_key(&self, new: NewKey) -> Result<(ApiKey, KeySecret), Error> {
        let secret = KeySecret::generate()?;
        let key = ApiKey {
            id: new.id,
            project: new.project,
            name: new.name,
            prefix: secret.shown().to_owned(),
            permissions: new.permissions,
            created_at: new.created_at,
            expires_at: new.expires_at,
            revoked_at: None,
            last_used_at: None,
        };
        let (row, hash) = (key.clone(), secret.hash());
        let work = move |connection: &Connection| {
            make_room(connection, &row)?;
            let params = (
                row.id.as_str(),
                row.project.as_str(),
                row.name.as_str(),
                &row.prefix,
                hash.as_bytes(),
                row.permissions.as_str(),
                column::millis(row.created_at),
                row.expires_at.map(column::millis),
            );
            column::execute(connection, INSERT, params).map_err(|error| error.naming("the project"))?;
            Ok(())
        };
        self.write(Durability::Power, work).await?;
        Ok((key, secret))
    }
}

fn make_room(connection: &Connection, new: &ApiKey) -> Result<(), Error> {
    let keys = column::one(connection, COUNT, [new.project.as_str()], |row| column::number(row, "keys"))?;
    if keys.is_none_or(|keys| keys < u64::from(KEYS_PER_PROJECT_MAX)) {
        return Ok(());
    }
    let params = (new.project.as_str(), column::millis(new.created_at));
    match column::execute(connection, FORGET_ONE, params)? {
        0 => Err(Error::TooMany { what: "keys in the project" }),
        _ => Ok(()),
    }
}
