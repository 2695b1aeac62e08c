//! Puts values into a request. What the program has put into the same slot is removed first, whatever it is: where a secret is
//! bound, a sandbox doesn't use a credential of its own.

use std::fmt::Write as _;

use http::header::HeaderValue;
use http::request::Parts;
use http::uri::PathAndQuery;
use hyper::body::Incoming;
use saggar_domain::net::{Destination, Refusal};
use std::sync::Arc;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::http::{Body, headers};
use crate::record::Record;
use crate::refuse::Page;
use crate::secret::held::{Chosen, Content, Held};
use crate::secret::payload::{self, Payload};
use crate::secret::sigv4::{self, Scope};
use crate::session::Shared;

/// Fills all slots. The request must be decided and recorded, and headers of one hop must be gone. `authority` is the host as
/// the server will see it. On failure gives the body back, if none of it was read.
pub(crate) async fn fill(
    session: &Shared,
    chosen: &Chosen,
    to: &Destination,
    authority: &HeaderValue,
    parts: &mut Parts,
    body: Incoming,
    record: &Arc<Record>,
) -> Result<Body, (Page, Option<Incoming>)> {
    let mut signer = None;
    // First, so that a secret may be the session token of temporary credentials.
    if chosen.held().any(|held| matches!(held.content, Content::SigV4 { .. })) {
        sigv4::strip(parts);
    }
    for held in chosen.held() {
        match &held.content {
            Content::Header(..) | Content::Query { .. } => {
                if !put(held, parts) {
                    return Err((unfit(record, to), Some(body)));
                }
            }
            // Last, because it signs the others.
            Content::SigV4 { access_key_id, region, service, value } => {
                signer = Some((Scope { access_key_id, region, service }, value));
            }
        }
    }
    let Some((scope, key)) = signer else { return Ok(Body::up(body, Arc::clone(record))) };
    let Payload { hash, body } = payload::hashed(session, parts, body, scope.service, to, record).await?;
    let now = OffsetDateTime::now_utc();
    if sigv4::sign(parts, authority, &scope, key.expose(), &hash, now).is_none() {
        return Err((unfit(record, to), None));
    }
    Ok(body)
}

/// Fills a slot that is a header or a parameter. `false` if the result is not a path of a request.
pub(super) fn put(held: &Held, parts: &mut Parts) -> bool {
    match &held.content {
        Content::Header(name, value) => {
            let slot = name.as_str().replace('_', "-");
            headers::remove_folded(&mut parts.headers, |name| name == slot);
            parts.headers.insert(name.clone(), value.clone());
            true
        }
        Content::Query { parameter, value } => put_parameter(parts, parameter, value.expose()),
        Content::SigV4 { .. } => false,
    }
}

/// Replaces all parameters of this name. `false` if the result is not a path of a request.
fn put_parameter(parts: &mut Parts, parameter: &str, value: &str) -> bool {
    let (path, query) = path_and_query(parts);
    let mut target =
        Zeroizing::new(String::with_capacity(path.len() + query.len() + parameter.len() + value.len() * 3 + 2));
    target.push_str(&path);
    target.push('?');
    let kept = without_parameters(&query, |name| name == parameter.as_bytes());
    target.push_str(&kept);
    if !kept.is_empty() {
        target.push('&');
    }
    target.push_str(&encoded(parameter));
    target.push('=');
    target.push_str(&encoded(value));
    replace_target(parts, &target)
}

/// A query without some parameters, by their decoded names. Some servers separate parameters by `;` as well as by `&`, so either ends
/// one; those that stay keep what stands before them.
pub(super) fn without_parameters(query: &str, is_meant: impl Fn(&[u8]) -> bool) -> String {
    let mut kept = String::with_capacity(query.len());
    let mut rest = query;
    let mut separator = "";
    while !rest.is_empty() || !separator.is_empty() {
        let end = rest.find(['&', ';']).unwrap_or(rest.len());
        let (pair, after) = rest.split_at(end);
        if !pair.is_empty() && !is_meant(&decoded(name_of(pair))) {
            if !kept.is_empty() {
                kept.push_str(separator);
            }
            kept.push_str(pair);
        }
        let (next, after) = after.split_at(after.len().min(1));
        (separator, rest) = (next, after);
    }
    kept
}

pub(super) fn path_and_query(parts: &Parts) -> (String, String) {
    let target = parts.uri.path_and_query();
    let path = target.map_or("/", PathAndQuery::path).to_owned();
    (path, target.and_then(PathAndQuery::query).unwrap_or_default().to_owned())
}

pub(super) fn replace_target(parts: &mut Parts, target: &str) -> bool {
    let Ok(target) = PathAndQuery::try_from(target) else { return false };
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    uri.path_and_query = Some(target);
    match http::Uri::from_parts(uri) {
        Ok(uri) => {
            parts.uri = uri;
            true
        }
        Err(_) => false,
    }
}

pub(super) fn name_of(pair: &str) -> &str {
    pair.split('=').next().unwrap_or_default()
}

/// As a form is decoded: `+` is a space.
pub(crate) fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().iter();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(&byte) = bytes.next() {
        let digit = |digit: Option<&u8>| digit.and_then(|digit| (*digit as char).to_digit(16));
        let rest = bytes.as_slice();
        decoded.push(match (byte, digit(rest.first()), digit(rest.get(1))) {
            (b'%', Some(high), Some(low)) => {
                bytes.nth(1);
                u8::try_from(high * 16 + low).unwrap_or(b'%')
            }
            (b'+', ..) => b' ',
            (other, ..) => other,
        });
    }
    decoded
}

/// Everything but unreserved characters in percent escapes.
pub(super) fn encoded(text: &str) -> Zeroizing<String> {
    encoded_but(text.as_bytes(), b"-._~")
}

pub(super) fn encoded_but(bytes: &[u8], kept: &[u8]) -> Zeroizing<String> {
    let mut encoded = Zeroizing::new(String::with_capacity(bytes.len() * 3));
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || kept.contains(&byte) {
            encoded.push(byte.into());
        } else {
            write!(encoded, "%{byte:02X}").expect("writing to a string never fails");
        }
    }
    encoded
}

/// The value can't be put into the request.
fn unfit(record: &Record, to: &Destination) -> Page {
    let refusal = Refusal::new(
        "egress/secret-slot",
        format!(
            "the secret for {to} doesn't fit into this request: its target or a header is too long, or can't be signed"
        ),
        "send a shorter query, and headers without control characters",
    );
    record.fail(refusal.message.clone());
    Page::failed(refusal)
}
