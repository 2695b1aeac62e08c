//! API keys: the credentials with which a client acts for a project.

mod create;
mod find;
mod list;
mod revoke;
mod secret;

use rusqlite::Row;
use saggar_domain::{KeyId, ProjectId, Timestamp};

use crate::column;
use crate::error::Error;

pub use create::NewKey;
pub use find::KeyCheck;
pub use revoke::Revoked;
pub use secret::KeySecret;

/// Maximum number of keys per project, including expired and revoked ones.
pub const KEYS_PER_PROJECT_MAX: u32 = 1_000;
/// Maximum length of a key's name, in characters.
const NAME_LEN_MAX: usize = 64;

/// A key without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    pub id: KeyId,
    /// The project it acts for.
    pub project: ProjectId,
    pub name: KeyName,
    /// The first characters of the secret, for recognising it.
    pub prefix: String,
    pub permissions: Permissions,
    pub created_at: Timestamp,
    /// When it becomes invalid.
    pub expires_at: Option<Timestamp>,
    /// When it was revoked, if it was.
    pub revoked_at: Option<Timestamp>,
    /// Last use, to the minute.
    pub last_used_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyName(String);

impl KeyName {
    /// Accepts 1 to 64 characters on one line, without surrounding spaces.
    pub fn parse(text: &str) -> Option<Self> {
        let length = text.chars().count();
        let is_name =
            (1..=NAME_LEN_MAX).contains(&length) && !text.chars().any(char::is_control) && text.trim() == text;
        is_name.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permissions {
    Full,
}

impl Permissions {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Full].into_iter().find(|permissions| permissions.as_str() == text)
    }
}

fn read(row: &Row<'_>) -> Result<ApiKey, Error> {
    Ok(ApiKey {
        id: column::parsed(row, "id", KeyId::parse)?,
        project: column::parsed(row, "project_id", ProjectId::parse)?,
        name: column::parsed(row, "name", KeyName::parse)?,
        prefix: column::plain(row, "prefix")?,
        permissions: column::parsed(row, "permissions", Permissions::parse)?,
        created_at: column::time(row, "created_at")?,
        expires_at: column::time_optional(row, "expires_at")?,
        revoked_at: column::time_optional(row, "revoked_at")?,
        last_used_at: column::time_optional(row, "last_used_at")?,
    })
}
