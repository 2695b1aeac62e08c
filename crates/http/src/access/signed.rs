//! Signed URLs: one file, one method, one user, until a deadline, for any client that has the URL.
//!
//! The query of a signed URL is `path`, `user`, `expires` and `signature`; the signature covers everything it allows,
//! so none of it can be changed. Unsigned parameters (`mode`, `parents`) may not be added.

use std::time::SystemTime;

use http::Method;
use saggar_api::{Code, FilePath, Timestamp, route};
use saggar_domain::{SandboxId, User};
use saggar_runtime::{Action, SigningKey, Subject};
use serde::{Deserialize, Serialize};

use crate::access::method_name;
use crate::gate::Gate;
use crate::refusal::Refusal;

/// The first word of a signature's text.
const PURPOSE: &str = "file/v1";

/// The query of a signed URL.
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

/// What a URL allows.
pub struct Grant<'a> {
    pub id: &'a SandboxId,
    /// `get` or `put`.
    pub method: &'a str,
    pub path: FilePath,
    pub user: Option<User>,
    pub expires_at: Timestamp,
}

/// The URL for it, relative to the root of the server.
pub fn address(key: &SigningKey, grant: Grant<'_>) -> String {
    let Grant { id, method, path, user, expires_at } = grant;
    let mut query = SignedQuery { path, user, expires: expires_at.as_millis(), signature: String::new() };
    query.signature = key.sign(&words(id, method, &query).each_ref().map(String::as_str)).0;
    format!("{}?{}", route::FILES.replace("{id}", id.as_str()), saggar_api::read::to_query(&query))
}

/// Whether a query has a signature.
pub fn is_signed(query: Option<&str>) -> bool {
    query.is_some_and(|query| query.split('&').any(|pair| pair.starts_with("signature=")))
}

/// The subject of a URL, if its signature is ours and it has not expired.
pub fn subject(server: &Gate, id: &SandboxId, method: &Method, query: Option<&str>) -> Result<Subject, Refusal> {
    let refused = || Refusal::new(Code::Unauthorized, "the signed URL is invalid or has expired", "request a new one");
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

/// The query without the signature's parameters.
pub fn unsigned(query: Option<&str>) -> String {
    let query = query.unwrap_or_default();
    if !is_signed(Some(query)) {
        return query.to_owned();
    }
    let is_kept = |pair: &&str| !pair.starts_with("signature=") && !pair.starts_with("expires=");
    query.split('&').filter(is_kept).collect::<Vec<_>>().join("&")
}
