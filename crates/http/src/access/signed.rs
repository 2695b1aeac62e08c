//! Signed addresses: one file, one method, one user, until one moment, for whoever has the address.
//!
//! The query of a signed address is `path`, `user`, `expires` and `signature`; a signature is over all of what it lets somebody do, so
//! nothing of it can be changed. What isn't signed (`mode`, `parents`) may not be added.

use std::time::SystemTime;

use http::Method;
use saggar_api::{Code, FilePath, Timestamp, route};
use saggar_domain::{SandboxId, User};
use saggar_runtime::{Action, SigningKey, Subject};
use serde::{Deserialize, Serialize};

use crate::access::method_name;
use crate::gate::Gate;
use crate::refusal::Refusal;

/// What the words of a signature begin with.
const PURPOSE: &str = "file/v1";

/// What a signed address says beside the sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignedQuery {
    path: FilePath,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user: Option<User>,
    /// Milliseconds since 1970.
    expires: u64,
    #[serde(default)]
    signature: String,
}

/// What an address lets somebody do.
pub struct Grant<'a> {
    pub id: &'a SandboxId,
    /// `get` or `put`.
    pub method: &'a str,
    pub path: FilePath,
    pub user: Option<User>,
    pub expires_at: Timestamp,
}

/// The address that lets somebody do it, from the root of the server.
pub fn address(key: &SigningKey, grant: Grant<'_>) -> String {
    let Grant { id, method, path, user, expires_at } = grant;
    let mut query = SignedQuery { path, user, expires: expires_at.as_millis(), signature: String::new() };
    query.signature = key.sign(&words(id, method, &query).each_ref().map(String::as_str)).0;
    format!("{}?{}", route::FILES.replace("{id}", id.as_str()), saggar_api::read::to_query(&query))
}

/// Whether a query says that it is signed.
pub fn is_signed(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|pair| pair.starts_with("signature=")))
}

/// Whoever has this address, if the signature is ours and its time is not over.
pub fn subject(server: &Gate, id: &SandboxId, method: &Method, query: Option<&str>) -> Result<Subject, Refusal> {
    let refused = || {
        Refusal::new(Code::Unauthorized, "the signed address is not valid, or its time is over", "ask for a new one")
    };
    let query: SignedQuery = saggar_api::read::query(query.unwrap_or_default()).map_err(|_| refused())?;
    let method = method_name(method).ok_or_else(refused)?;
    let words = words(id, method, &query);
    let is_ours = server.sandboxes.signing().verify(&words.each_ref().map(String::as_str), &query.signature);
    let now = saggar_domain::Timestamp::from(SystemTime::now()).as_millis();
    if !is_ours || query.expires <= now {
        return Err(refused());
    }
    let project = server.sandboxes.project_of(id).ok_or_else(refused)?;
    let action = match method {
        "put" => Action::WriteFiles(id.clone()),
        _ => Action::ReadFiles(id.clone()),
    };
    Ok(Subject::Bearer { project, action })
}

fn words(id: &SandboxId, method: &str, query: &SignedQuery) -> [String; 6] {
    let user = query.user.map(User::as_str).unwrap_or_default();
    [
        PURPOSE.to_owned(),
        method.to_owned(),
        id.to_string(),
        query.path.as_str().to_owned(),
        user.to_owned(),
        query.expires.to_string(),
    ]
}

/// The query without what signs it.
pub fn unsigned(query: Option<&str>) -> String {
    let query = query.unwrap_or_default();
    if !is_signed(Some(query)) {
        return query.to_owned();
    }
    let is_kept = |pair: &&str| !pair.starts_with("signature=") && !pair.starts_with("expires=");
    query.split('&').filter(is_kept).collect::<Vec<_>>().join("&")
}
