//! Writes a secret: a new one, or the next version of one that exists.
//!
//! The seal covers the version, so the caller has to know the version before it writes. Whoever comes second is told to
//! read again.

use rusqlite::Connection;
use saggar_domain::secret::{Binding, SecretName};
use saggar_domain::{ProjectId, Timestamp};

use super::{SECRETS_PER_PROJECT_MAX, Sealed, SealingKeyId};
use crate::column;
use crate::error::Error;
use crate::meta::{self, MetaKey};
use crate::store::Store;
use crate::writer::Durability;

const VERSION: &str = "SELECT version FROM secret WHERE project_id = ?1 AND name = ?2";
const COUNT: &str = "SELECT count(*) AS secrets FROM secret WHERE project_id = ?1";
const INSERT: &str = "
    INSERT INTO secret (project_id, name, version, created_at, updated_at, key_id, binding_json, sealed)
    VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7)
    ON CONFLICT (project_id, name) DO UPDATE SET
        version = excluded.version, updated_at = excluded.updated_at, key_id = excluded.key_id,
        binding_json = excluded.binding_json, sealed = excluded.sealed";

/// A version of a secret to write.
#[derive(Clone, Debug)]
pub struct NewSecret {
    pub project: ProjectId,
    pub name: SecretName,
    /// One more than the version that it replaces; 1 for a new secret.
    pub version: u64,
    pub at: Timestamp,
    pub key: SealingKeyId,
    /// The JSON of a [`Binding`], as the seal covers it.
    pub binding_text: String,
    pub sealed: Sealed,
}

/// What came of writing a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Done,
    /// Another version was written meanwhile: read it, and try again.
    Changed,
    /// The sealing key was changed meanwhile: read its id, and try again.
    OtherKey,
}

impl NewSecret {
    /// The text of a binding that is to be sealed and stored.
    pub fn text_of(binding: &Binding) -> String {
        column::to_json(binding)
    }
}

impl Store {
    /// Writes a secret. The first one also decides the sealing key. [`Error::Missing`] if the project doesn't exist.
    pub async fn put_secret(&self, new: NewSecret) -> Result<Put, Error> {
        let work = move |connection: &Connection| {
            match sealing_key(connection)? {
                Some(current) if current != new.key => return Ok(Put::OtherKey),
                Some(_) => {}
                None => {
                    column::execute(connection, meta::SET, (MetaKey::SealingKeyId.as_str(), new.key.as_str()))?;
                }
            }
            let place = (new.project.as_str(), new.name.as_str());
            let current = column::one(connection, VERSION, place, |row| column::number(row, "version"))?;
            if current.unwrap_or(0).checked_add(1) != Some(new.version) {
                return Ok(Put::Changed);
            }
            if current.is_none() {
                check_room(connection, &new.project)?;
            }
            let params = (
                new.project.as_str(),
                new.name.as_str(),
                column::count(new.version),
                column::millis(new.at),
                new.key.as_str(),
                &new.binding_text,
                &new.sealed.0,
            );
            column::execute(connection, INSERT, params).map_err(|error| error.naming("the project"))?;
            Ok(Put::Done)
        };
        self.write(Durability::Power, work).await
    }

    /// The key that values are sealed with; `None` before the first secret.
    pub async fn sealing_key(&self) -> Result<Option<SealingKeyId>, Error> {
        self.read(sealing_key).await
    }
}

pub(super) fn sealing_key(connection: &Connection) -> Result<Option<SealingKeyId>, Error> {
    column::one(connection, meta::GET, [MetaKey::SealingKeyId.as_str()], |row| {
        column::parsed(row, "value", SealingKeyId::parse)
    })
}

fn check_room(connection: &Connection, project: &ProjectId) -> Result<(), Error> {
    let secrets = column::one(connection, COUNT, [project.as_str()], |row| column::number(row, "secrets"))?;
    match secrets {
        Some(secrets) if secrets >= u64::from(SECRETS_PER_PROJECT_MAX) => {
            Err(Error::TooMany { what: "secrets in the project" })
        }
        _ => Ok(()),
    }
}
