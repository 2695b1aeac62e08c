//! Changes to a live sandbox: its deadline, the action at the deadline, its labels.

use saggar_domain::{DeadlineAction, Timeout};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use crate::name::Labels;
use crate::object::only_from_an_object;
use crate::sandbox::Ports;
use crate::schema;
use crate::time::Timestamp;

/// Changes to a sandbox; missing fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct UpdateSandbox {
    /// New remaining lifetime. Not together with `deadline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub ttl: Option<Timeout>,
    /// New deadline. Not together with `ttl`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Instant>)]
    pub deadline: Option<Timestamp>,
    /// What happens when its time is up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::OnTimeout>)]
    pub on_timeout: Option<DeadlineAction>,
    /// Maximum time without activity; null for unlimited.
    #[serde(skip_serializing_if = "Change::is_keep")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub idle_timeout: Change<Timeout>,
    /// Replaces all labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TextMap>)]
    pub labels: Option<Labels>,
    /// Whether a request resumes it while it is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<bool>,
    /// Replaces the access to its ports.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub ports: Option<Ports>,
}

/// A field of a change: missing, null, or a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Change<T> {
    /// Missing: unchanged.
    #[default]
    Keep,
    /// Null: removed.
    Clear,
    /// The new value.
    Set(T),
}

impl<T> Change<T> {
    /// Whether the field stays unchanged.
    pub fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }
}

impl<T: Serialize> Serialize for Change<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            // `Keep` is left out by `skip_serializing_if` wherever it is used.
            Self::Keep | Self::Clear => serializer.serialize_none(),
            Self::Set(value) => value.serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Change<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Clear, Self::Set))
    }
}

/// Options for pausing a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct PauseSandbox {
    /// Whether its memory is kept, with its processes frozen in it. Without, its processes are ended: only its files are kept, on disk.
    pub memory: bool,
}

impl Default for PauseSandbox {
    fn default() -> Self {
        Self { memory: true }
    }
}

/// Options for resuming a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct ResumeSandbox {
    /// New remaining lifetime; by default what was left when it was paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub ttl: Option<Timeout>,
}

/// A new lifetime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct SetTimeout {
    /// The remaining lifetime from now on.
    #[schema(value_type = schema::TimeSpan)]
    pub ttl: Timeout,
}

only_from_an_object!(UpdateSandbox, PauseSandbox, ResumeSandbox, SetTimeout);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_out_null_and_a_value_are_three_things() {
        for (json, expected) in [
            (r#"{}"#, Change::Keep),
            (r#"{"idle_timeout":null}"#, Change::Clear),
            (r#"{"idle_timeout":"5m"}"#, Change::Set(Timeout::millis(300_000))),
        ] {
            let update: UpdateSandbox = serde_json::from_str(json).unwrap();
            assert_eq!(update.idle_timeout, expected, "{json}");
            assert_eq!(serde_json::to_string(&update).unwrap(), json);
        }
    }
}
