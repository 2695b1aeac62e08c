//! Credentials of E2B's data plane: the token of a sandbox's inside, in a header, and signed URLs of files made with
//! it.
//!
//! A signature is SHA-256 over the path, `read` or `write`, the user, the token and optionally a time, separated by
//! colons; clients compute it themselves. A URL may name no sandbox: then it is the one whose token fits.

use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::HeaderMap;
use saggar_domain::{SandboxId, Timestamp};
use saggar_http::access::{self, Insider};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::failure::{CallFailure, Code};
use super::id;
use crate::state::Shared;

/// The header with the token.
const HEADER: &str = "x-access-token";

/// The query of a file URL. Other parameters are ignored.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct FileQuery {
    pub(super) path: Option<String>,
    pub(super) username: Option<String>,
    signature: Option<String>,
    signature_expiration: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Read,
    Write,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Authenticates by the token of this sandbox's inside.
pub(super) fn insider(server: &Shared, headers: &HeaderMap, sandbox: &SandboxId) -> Result<Insider, CallFailure> {
    let Some(inside) = access::inside(server, sandbox) else { return Err(CallFailure::gone(id::short(sandbox))) };
    let shown = headers.get(HEADER).and_then(|token| token.to_str().ok());
    match shown {
        Some(token) => inside.by_token(server, token).ok_or_else(|| unauthenticated("invalid access token")),
        None => Err(unauthenticated("missing access token")),
    }
}

/// Authenticates by the token, or by a signature made with it.
pub(super) fn file_insider(
    server: &Shared,
    headers: &HeaderMap,
    sandbox: &SandboxId,
    operation: Operation,
    query: &FileQuery,
) -> Result<Insider, CallFailure> {
    let Some(inside) = access::inside(server, sandbox) else { return Err(CallFailure::gone(id::short(sandbox))) };
    if let Some(token) = headers.get(HEADER) {
        let token = token.to_str().unwrap_or_default();
        let wrong = "access token present in header but does not match";
        return inside.by_token(server, token).ok_or_else(|| unauthenticated(wrong));
    }
    let signature = query.signature.as_ref().ok_or_else(|| unauthenticated("missing signature query parameter"))?;
    let signing = Signing::of(operation, query)?;
    let insider = inside.by_fit(server, |token| is_same(signature, &signing.with(token)));
    let insider = insider.ok_or_else(|| unauthenticated("invalid signature"))?;
    signing.check_time()?;
    Ok(insider)
}

/// The sandbox whose token fits the signature of a URL that names none.
pub(super) fn signed_sandbox(
    server: &Shared,
    operation: Operation,
    query: &FileQuery,
) -> Result<Option<SandboxId>, CallFailure> {
    let Some(signature) = &query.signature else { return Ok(None) };
    let signing = Signing::of(operation, query)?;
    // One short hash per live sandbox, whose number is limited by the operator.
    Ok(server.sandboxes.live_ids().into_iter().find(|id| {
        let inside = access::inside(server, id);
        inside.is_some_and(|inside| inside.by_fit(server, |token| is_same(signature, &signing.with(token))).is_some())
    }))
}

/// A signature without the token. Its long parts are hashed once, however many tokens are tried.
struct Signing {
    begun: Sha256,
    /// When it expires, in seconds since 1970.
    until: Option<u64>,
}

impl Signing {
    fn of(operation: Operation, query: &FileQuery) -> Result<Self, CallFailure> {
        let path = query.path.as_deref().unwrap_or_default();
        let user = query.username.as_deref().unwrap_or_default();
        let begun = Sha256::new_with_prefix(format!("{path}:{}:{user}:", operation.as_str()));
        let seconds = |text: &String| match text.parse::<u64>() {
            // In the clients' own spelling: any other was not signed by one.
            Ok(seconds) if seconds.to_string() == *text => Ok(seconds),
            Ok(_) | Err(_) => Err(CallFailure::invalid("signature_expiration is not a number of seconds")),
        };
        Ok(Self { begun, until: query.signature_expiration.as_ref().map(seconds).transpose()? })
    }

    fn with(&self, token: &str) -> String {
        let mut hash = self.begun.clone().chain_update(token);
        if let Some(until) = self.until {
            hash.update(format!(":{until}"));
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(hash.finalize()))
    }

    fn check_time(&self) -> Result<(), CallFailure> {
        let now = Timestamp::from(SystemTime::now()).as_millis() / 1000;
        match self.until {
            Some(until) if until < now => Err(unauthenticated("signature is already expired")),
            Some(_) | None => Ok(()),
        }
    }
}

/// Compares by hash, so that the time reveals nothing about how much is equal.
fn is_same(one: &str, other: &str) -> bool {
    Sha256::digest(one.as_bytes()) == Sha256::digest(other.as_bytes())
}

fn unauthenticated(message: &str) -> CallFailure {
    CallFailure::new(Code::Unauthenticated, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_are_those_that_clients_make() {
        let mut query = FileQuery { path: Some("/a b".to_owned()), ..FileQuery::default() };
        // Made with Python: base64.b64encode(hashlib.sha256(b"/a b:read::tok").digest()).rstrip(b"=")
        let signed = |operation, query: &FileQuery| Signing::of(operation, query).unwrap().with("tok");
        assert_eq!(signed(Operation::Read, &query), "v1_dgCJhR1eFbOEacKLrakWIrQZDgxJ2zP38eGtFIbZ9+8");
        query.username = Some("root".to_owned());
        query.signature_expiration = Some("1700000000".to_owned());
        assert_eq!(signed(Operation::Write, &query), "v1_tC83G8efN7yvUhXuVLO0B/U2AbCagAHB+FbkCO1LcEE");
        assert!(Signing::of(Operation::Write, &query).unwrap().check_time().is_err());
        for wrong in ["", "-1", "+1", "01", "1e9", "1700000000\u{80}", "18446744073709551616"] {
            query.signature_expiration = Some(wrong.to_owned());
            assert!(Signing::of(Operation::Write, &query).is_err(), "{wrong}");
        }
    }
}
