//! Canonical JSON, and the hashes of policies and of agents.
//!
//! Canonical means that keys are sorted and that there are no spaces and no floating-point numbers. The same spec has
//! the same text on every machine.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};
use sha2::{Digest, Sha256};

use crate::spec::Spec;

/// Named in the hashed text, so that a change of format changes every hash.
const POLICY_SCHEMA: &str = "saggar.policy/v1";
/// The same for agents.
const AGENT_SCHEMA: &str = "saggar.agent/v1";

macro_rules! hashes {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            fn of_text(text: &str) -> Self {
                let mut hash = String::from("sha256:");
                for byte in Sha256::digest(text.as_bytes()) {
                    hash.push_str(&format!("{byte:02x}"));
                }
                Self(hash)
            }

            /// `None` if the text is not a hash.
            pub fn parse(text: &str) -> Option<Self> {
                let digits = text.strip_prefix("sha256:")?;
                let is_hash = digits.len() == 64 && digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                is_hash.then(|| Self(text.to_owned()))
            }

            /// Includes the algorithm, as in `sha256:…`.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                let wrong = || de::Error::custom(format!("{text:?} is not a hash of the form sha256:…"));
                Self::parse(&text).ok_or_else(wrong)
            }
        }
    )+};
}

hashes! {
    /// Identifies a boundary.
    PolicyHash;
    /// Identifies an agent: everything in its definition but the task.
    AgentHash;
}

impl PolicyHash {
    pub(crate) fn of(spec: &Spec) -> Self {
        Self::of_text(&canonical_json(&(POLICY_SCHEMA, spec)))
    }
}

impl AgentHash {
    /// The definition must be without its task.
    pub fn of(definition: &impl Serialize) -> Self {
        Self::of_text(&canonical_json(&(AGENT_SCHEMA, definition)))
    }
}

/// The unique text of a value. Converting to `Value` sorts the keys.
pub fn canonical_json(value: &impl Serialize) -> String {
    serde_json::to_value(value).expect("our own types have only text keys").to_string()
}
