//! API keys: made, listed, revoked. The secret is in one answer only.

use saggar_domain::{KeyId, ProjectId, Timeout};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::name::KeyName;
use crate::object::only_from_an_object;
use crate::schema;
use crate::secret::Secret;
use crate::time::Timestamp;

/// A key to be made, in the project of the key that asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct CreateKey {
    /// What it is called.
    pub name: KeyName,
    /// How long it works from now; without it, until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub expires: Option<Timeout>,
}

/// A key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// Its id.
    #[schema(value_type = schema::KeyId)]
    pub id: KeyId,
    /// Whose it is.
    #[schema(value_type = schema::ProjectId)]
    pub project_id: ProjectId,
    /// What it is called.
    pub name: KeyName,
    /// How its secret begins, to tell keys apart.
    #[schema(example = "sgr_4fHq")]
    pub prefix: String,
    /// When it was made.
    #[schema(value_type = schema::Instant)]
    pub created_at: Timestamp,
    /// When it was last used, to within a minute.
    #[schema(value_type = Option<schema::Instant>)]
    pub last_used_at: Option<Timestamp>,
    /// When it stops working.
    #[schema(value_type = Option<schema::Instant>)]
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    #[schema(value_type = Option<schema::Instant>)]
    pub revoked_at: Option<Timestamp>,
}

/// A key just made. Only this answer has the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedKey {
    /// The key.
    #[serde(flatten)]
    pub key: Key,
    /// What to send as `Authorization: Bearer …`.
    #[schema(example = "sgr_4fHqR2m1v8Xn0cT7yLw5aZ9bKdQ3eJ6gUiPoSfVhBxM")]
    pub secret: Secret,
}

/// All keys of a project, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeyList {
    /// The keys.
    pub items: Vec<Key>,
}

only_from_an_object!(CreateKey);
