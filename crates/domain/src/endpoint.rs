//! An HTTP endpoint that an agent's definition declares as a tool: where its calls go, what they take, and which
//! secret they carry. Its text comes from the agent's author, so it has no value of a secret in it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::schema::Schema;
use crate::secret::SecretName;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpEndpoint {
    /// For the model.
    pub description: String,
    /// `https://host/path`; `{name}` in the path stands for an argument.
    pub url: String,
    pub method: String,
    /// Of the arguments: it describes an object.
    pub schema: Schema,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The header that gets the step's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency_header: Option<String>,
    /// A secret of the project. Its binding says where it may go, and into which slot of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretName>,
}
