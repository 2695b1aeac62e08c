//! Secrets of a project: store, list, read without the value, remove. No response has a value.

use saggar_domain::secret::{Binding, SecretName, Slot};
use saggar_domain::{ProjectId, SandboxId};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::object::only_from_an_object;
use crate::schema;
use crate::secret::Secret;
use crate::time::Timestamp;

/// A secret to store, or what is new about one that exists: what is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct SetSecret {
    /// The value: text on one line, 8 bytes to 8 KiB. No response ever has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 8, max_length = 8192, write_only)]
    pub value: Option<Secret>,
    /// The requests that get the value, and where in them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SecretBindingShape>)]
    pub binding: Option<Binding>,
}

/// A secret, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProjectSecret {
    /// The secret's name.
    #[schema(value_type = schema::SecretName)]
    pub name: SecretName,
    /// The project it belongs to.
    #[schema(value_type = schema::ProjectId)]
    pub project_id: ProjectId,
    /// The requests that get the value, and where in them.
    pub binding: EffectiveBinding,
    /// Counts changes of the value and of the binding, from 1.
    pub version: u64,
    /// When it was first stored.
    #[schema(value_type = schema::Instant)]
    pub created_at: Timestamp,
    /// When it was last changed.
    #[schema(value_type = schema::Instant)]
    pub updated_at: Timestamp,
    /// Names the key that the value is sealed with.
    #[schema(example = "9f1bbf4c618e5349")]
    pub sealing_key: String,
    /// The live sandboxes that use it. Only in the response to a request for one secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Vec<schema::SandboxId>, nullable = false)]
    pub used_by: Option<Vec<SandboxId>>,
}

/// A binding as responses show it. Rules are text, because a newer server may have rules that a client can't parse.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EffectiveBinding {
    /// The requests that get the value.
    #[schema(value_type = Vec<schema::NetworkRule>)]
    pub rules: Vec<String>,
    /// Where in a request the value goes.
    #[schema(value_type = schema::SecretSlot)]
    pub slot: EffectiveSlot,
    /// What placeholders begin with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub placeholder_prefix: Option<String>,
}

/// A slot as responses show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EffectiveSlot {
    /// A slot of this version.
    Known(Slot),
    /// A slot that only a newer server knows.
    Other(serde_json::Value),
}

impl From<Binding> for EffectiveBinding {
    fn from(binding: Binding) -> Self {
        Self {
            rules: binding.rules().iter().map(ToString::to_string).collect(),
            slot: EffectiveSlot::Known(binding.slot().clone()),
            placeholder_prefix: binding.placeholder_prefix().map(str::to_owned),
        }
    }
}

/// All secrets of a project, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretList {
    /// The secrets.
    pub items: Vec<ProjectSecret>,
}

/// How to remove a secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct RemoveSecret {
    /// Remove it although live sandboxes use it: they go on without it.
    pub force: bool,
}

only_from_an_object!(SetSecret);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_of_a_newer_server_is_kept_and_shown() {
        for slot in [r#""bearer""#, r#"{"basic":{"user":"bot"}}"#, r#"{"oauth":{"token_url":"x"}}"#, r#""mtls""#] {
            let json = format!(r#"{{"rules":["a.example"],"slot":{slot}}}"#);
            let read: EffectiveBinding = serde_json::from_str(&json).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), json);
        }
    }

    #[test]
    fn debug_does_not_tell_the_value() {
        let set: SetSecret = serde_json::from_str(r#"{"value":"sk-canary-1"}"#).unwrap();
        assert!(!format!("{set:?}").contains("canary"));
    }
}
