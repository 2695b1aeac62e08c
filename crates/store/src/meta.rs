//! Facts about the store itself.

use saggar_domain::BootId;

use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

pub(crate) const GET: &str = "SELECT value FROM meta WHERE key = ?1";
pub(crate) const SET: &str =
    "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
pub(crate) const FORGET: &str = "DELETE FROM meta WHERE key = ?1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaKey {
    /// The host's boot id when the store was last used.
    BootId,
    /// The key that currently signs URLs.
    SigningKeyId,
    /// The settings that the server shares with its workers.
    SharedSettings,
    /// The key that values of secrets are sealed with.
    SealingKeyId,
}

impl MetaKey {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::BootId => "boot_id",
            Self::SigningKeyId => "signing_key_id",
            Self::SharedSettings => "shared_settings",
            Self::SealingKeyId => "sealing_key_id",
        }
    }
}

impl Store {
    pub async fn meta(&self, key: MetaKey) -> Result<Option<String>, Error> {
        self.read(move |connection| column::one(connection, GET, [key.as_str()], |row| column::plain(row, "value")))
            .await
    }

    pub async fn set_meta(&self, key: MetaKey, value: String) -> Result<(), Error> {
        let work = move |connection: &rusqlite::Connection| {
            column::execute(connection, SET, (key.as_str(), &value))?;
            Ok(())
        };
        self.write(Durability::Power, work).await
    }

    /// The host's boot id when the store was last used.
    pub async fn last_boot(&self) -> Result<Option<BootId>, Error> {
        let value = self.meta(MetaKey::BootId).await?;
        value.map(|text| BootId::parse(&text).ok_or_else(|| Error::corrupt("the boot id can't be parsed"))).transpose()
    }
}
