//! Making a key.

use saggar_domain::{KeyId, ProjectId, Timestamp};

use super::{ApiKey, KeyName, KeySecret, Permissions};
use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

const INSERT: &str = "
    INSERT INTO api_key (id, project_id, name, prefix, hash, permissions, created_at, expires_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

/// A key to be made.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// Its id.
    pub id: KeyId,
    /// Whom it acts for.
    pub project: ProjectId,
    /// What people call it.
    pub name: KeyName,
    /// What it may do.
    pub permissions: Permissions,
    /// Now.
    pub created_at: Timestamp,
    /// From when on it is worth nothing.
    pub expires_at: Option<Timestamp>,
}

impl Store {
    /// Makes a key, and gives out its secret: now, and never again. [`Error::Missing`] when there is no such project.
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
        let work = move |connection: &rusqlite::Connection| {
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
