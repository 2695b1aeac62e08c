//! Environment variables of a request, validated by the domain's rules.

use std::collections::BTreeMap;

use saggar_domain::{EnvDraft, Problem};
use serde::{Deserialize, Deserializer, Serialize};

/// Environment variables, each name once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Environment(EnvDraft);

impl Environment {
    /// Validates entries by the domain's rules.
    pub fn of(entries: impl IntoIterator<Item = (String, String)>) -> Result<Self, Problem> {
        let mut draft = EnvDraft::default();
        for (name, value) in entries {
            draft.insert(name, value)?;
        }
        Ok(Self(draft))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The variables by name.
    pub fn into_map(self) -> BTreeMap<String, String> {
        self.0.into_map()
    }
}

impl From<EnvDraft> for Environment {
    fn from(draft: EnvDraft) -> Self {
        Self(draft)
    }
}

impl From<Environment> for EnvDraft {
    fn from(environment: Environment) -> Self {
        environment.0
    }
}

impl<'de> Deserialize<'de> for Environment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        EnvDraft::deserialize(deserializer).map(Self)
    }
}
