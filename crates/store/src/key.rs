//! API keys: what a client shows to act for a project.

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

/// Most keys of one project, those that are worth nothing any more included.
pub const KEYS_PER_PROJECT_MAX: u32 = 1_000;
/// Longest name of a key, in characters.
const NAME_LEN_MAX: usize = 64;

/// A key as it can be shown again: everything but its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    pub id: KeyId,
    /// Whom it acts for.
    pub project: ProjectId,
    /// What people call it.
    pub name: KeyName,
    /// The first characters of the secret, to know it by.
    pub prefix: String,
    /// What it may do.
    pub permissions: Permissions,
    /// When it was made.
    pub created_at: Timestamp,
    /// From when on it is worth nothing.
    pub expires_at: Option<Timestamp>,
    /// Since when it is worth nothing, because somebody said so.
    pub revoked_at: Option<Timestamp>,
    /// When it was last shown to us, to the minute.
    pub last_used_at: Option<Timestamp>,
}

/// What people call a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyName(String);

impl KeyName {
    /// Takes 1 to 64 characters on one line, without spaces around them.
    pub fn parse(text: &str) -> Option<Self> {
        let length = text.chars().count();
        let is_name =
            (1..=NAME_LEN_MAX).contains(&length) && !text.chars().any(char::is_control) && text.trim() == text;
        is_name.then(|| Self(text.to_owned()))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a key may do in its project.
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

    /// Reads a name back.
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
