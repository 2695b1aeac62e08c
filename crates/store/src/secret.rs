//! Secrets of projects as rows: a name, where the value may be used, and the sealed value.
//!
//! Values are sealed and opened elsewhere: here is neither a value nor a key. The row that names the current sealing key
//! fences writers: a value that was sealed with another key is not written, so a change of the key can't lose one.

mod get;
mod list;
mod named;
mod put;
mod remove;
mod reseal;

use std::fmt;

use rusqlite::Row;
use saggar_domain::secret::{Binding, SecretName};
use saggar_domain::{ProjectId, Timestamp};

use crate::column;
use crate::error::Error;

pub use put::{NewSecret, Put};
pub use remove::{Removed, WhileUsed};

/// Maximum number of secrets of a project.
pub const SECRETS_PER_PROJECT_MAX: u32 = 1_000;

/// A secret without its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretRow {
    pub project: ProjectId,
    pub name: SecretName,
    /// Counts changes from 1.
    pub version: u64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// The key that its value is sealed with.
    pub key: SealingKeyId,
    pub binding: Binding,
}

/// A secret with its sealed value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedSecret {
    pub row: SecretRow,
    /// The binding exactly as it is stored: the seal covers this text.
    pub binding_text: String,
    pub sealed: Sealed,
}

/// A sealed value. `Debug` shows only its length.
#[derive(Clone, PartialEq, Eq)]
pub struct Sealed(pub Vec<u8>);

impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sealed({} bytes)", self.0.len())
    }
}

/// Names a sealing key: 16 hexadecimal digits, derived from the key. Not secret.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SealingKeyId(String);

impl SealingKeyId {
    pub fn parse(text: &str) -> Option<Self> {
        let is_id = text.len() == 16 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_id.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SealingKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The columns that [`read`] reads; [`read_sealed`] reads `sealed` too.
macro_rules! columns {
    () => {
        "project_id, name, version, created_at, updated_at, key_id, binding_json"
    };
}
pub(crate) use columns;

fn read(row: &Row<'_>) -> Result<SecretRow, Error> {
    Ok(SecretRow {
        project: column::parsed(row, "project_id", ProjectId::parse)?,
        name: column::parsed(row, "name", SecretName::parse)?,
        version: column::number(row, "version")?,
        created_at: column::time(row, "created_at")?,
        updated_at: column::time(row, "updated_at")?,
        key: column::parsed(row, "key_id", SealingKeyId::parse)?,
        binding: column::json(row, "binding_json")?,
    })
}

pub(crate) fn read_sealed(row: &Row<'_>) -> Result<SealedSecret, Error> {
    Ok(SealedSecret {
        row: read(row)?,
        binding_text: column::plain(row, "binding_json")?,
        sealed: Sealed(column::plain(row, "sealed")?),
    })
}
