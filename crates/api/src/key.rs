//! API keys: create, list, revoke. The secret is in one response only.

use saggar_domain::{KeyId, ProjectId, Timeout};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::name::KeyName;
use crate::object::only_from_an_object;
use crate::schema;
use crate::secret::Secret;
use crate::time::Timestamp;

/// A key to create, in the project of the key that authenticates the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct CreateKey {
    /// The key's name.
    pub name: KeyName,
    /// How long it is valid; by default until it is revoked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub expires: Option<Timeout>,
}

/// A key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// The key's id.
    #[schema(value_type = schema::KeyId)]
    pub id: KeyId,
    /// The project it belongs to.
    #[schema(value_type = schema::ProjectId)]
    pub project_id: ProjectId,
    /// The key's name.
    pub name: KeyName,
    /// The beginning of its secret, to tell keys apart.
    #[schema(example = "sgr_4fHq")]
    pub prefix: String,
    /// When it was created.
    #[schema(value_type = schema::Instant)]
    pub created_at: Timestamp,
    /// When it was last used, to the minute.
    #[schema(value_type = Option<schema::Instant>)]
    pub last_used_at: Option<Timestamp>,
    /// When it expires.
    #[schema(value_type = Option<schema::Instant>)]
    pub expires_at: Option<Timestamp>,
    /// When it was revoked.
    #[schema(value_type = Option<schema::Instant>)]
    pub revoked_at: Option<Timestamp>,
}

/// A new key. Only this response has the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreatedKey {
    /// The key without its secret.
    #[serde(flatten)]
    pub key: Key,
    /// The value for `Authorization: Bearer …`.
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
