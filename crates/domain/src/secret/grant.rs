//! A grant: a secret as the egress process holds it for one sandbox.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::secret::binding::Binding;
use crate::secret::name::SecretName;
use crate::secret::value::{SecretValue, exposed};

/// Its JSON has the value, and is for the socket of the egress process only. Overwrite the bytes after they are sent.
#[derive(Clone, Serialize, Deserialize)]
pub struct Grant {
    pub name: SecretName,
    /// What the sandbox holds in place of the value.
    pub placeholder: String,
    pub binding: Binding,
    #[serde(serialize_with = "exposed")]
    pub value: SecretValue,
}

/// Without the value.
impl fmt::Debug for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, placeholder, binding, value: _ } = self;
        f.debug_struct("Grant")
            .field("name", name)
            .field("placeholder", placeholder)
            .field("binding", binding)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_shows_everything_but_its_value() {
        let json = r#"{"name":"openai","placeholder":"sk-saggar-00","binding":{"rules":["api.openai.com"],"slot":"bearer"},"value":"sk-canary-value"}"#;
        let grant: Grant = serde_json::from_str(json).unwrap();
        let shown = format!("{grant:?} {grant:#?}");
        assert!(shown.contains("openai") && !shown.contains("canary"), "{shown}");
        assert_eq!(serde_json::to_string(&grant).unwrap(), json, "the socket of the egress process gets the value");
    }
}
