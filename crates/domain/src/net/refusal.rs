//! Refusals: why a destination, a request or an address was denied, by which rule, and what to do.

use std::fmt;

use serde::{Deserialize, Serialize};

/// For people and for programs. Contains only characters that are safe to print, and is bounded in length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Stable, such as `egress/default`, `egress/deny:RULE` or `egress/address-private`.
    pub rule: String,
    /// What was refused, and why.
    pub message: String,
    /// What to do if it should have been allowed.
    pub help: String,
}

impl Refusal {
    pub fn new(rule: impl Into<String>, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { rule: rule.into(), message: message.into(), help: help.into() }
    }
}

/// The canonical text of an allow rule that matched; `@set: RULE` if it came from a set.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RuleRef(pub String);

impl fmt::Display for RuleRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
