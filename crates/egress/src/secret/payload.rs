//! The hash of a body, which an AWS signature covers.
//!
//! A client of S3 sends the hash, or says that there is none, and then the body passes as it comes. Without such a header, a body
//! for S3 is not signed, which S3 accepts over TLS; for another service it is read whole, up to a limit, because these
//! accept nothing else.

use std::sync::Arc;

use http::HeaderValue;
use http::request::Parts;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use saggar_domain::net::{Destination, Refusal};
use tokio::sync::OwnedSemaphorePermit;

use crate::http::Body;
use crate::limits::{SIGNED_BODIES_MAX, SIGNED_BODY_MAX};
use crate::record::{Record, Spent};
use crate::refuse::Page;
use crate::secret::sigv4::{CONTENT_HASH, S3, hash};
use crate::session::Shared;

const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
/// Sums come after the body, and are not signed.
const UNSIGNED_WITH_TRAILER: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

pub(super) struct Payload {
    /// For the signature.
    pub hash: String,
    pub body: Body,
}

pub(super) async fn hashed(
    session: &Shared,
    parts: &mut Parts,
    body: Incoming,
    service: &str,
    to: &Destination,
    record: &Arc<Record>,
) -> Result<Payload, (Page, Option<Incoming>)> {
    let passing = |hash: &str, body| Payload { hash: hash.to_owned(), body: Body::up(body, Arc::clone(record)) };
    let mut claimed = parts.headers.get_all(CONTENT_HASH).iter();
    match (claimed.next().map(|value| value.to_str().unwrap_or_default().to_owned()), claimed.next()) {
        (Some(claim), None) if is_hash(&claim) || claim == UNSIGNED || claim == UNSIGNED_WITH_TRAILER => {
            return Ok(passing(&claim, body));
        }
        (Some(_), _) => return Err((signed_in_parts(record, to), Some(body))),
        (None, _) => {}
    }
    if body.is_end_stream() && service != S3 {
        return Ok(passing(&hash(b""), body));
    }
    if service == S3 {
        let unsigned = if body.is_end_stream() { hash(b"") } else { UNSIGNED.to_owned() };
        if let Ok(value) = HeaderValue::from_str(&unsigned) {
            parts.headers.insert(CONTENT_HASH, value);
        }
        return Ok(passing(&unsigned, body));
    }
    read(session, body, to, record).await.map_err(|page| (page, None))
}

/// The whole body.
async fn read(session: &Shared, mut body: Incoming, to: &Destination, record: &Record) -> Result<Payload, Page> {
    let mut whole = Vec::new();
    let mut room: Option<OwnedSemaphorePermit> = None;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| {
            record.fail("the program ended its request early");
            Page::failed(Refusal::new("egress/secret-payload", "the request ended early", "send it again"))
        })?;
        // Trailers of a request are not signed, and no service of AWS wants any.
        let Ok(data) = frame.into_data() else { continue };
        record.take_up(data.len()).map_err(|Spent(refusal)| Page::too_many(refusal))?;
        if whole.len() + data.len() > SIGNED_BODY_MAX {
            return Err(too_long(record, to));
        }
        let more = u32::try_from(data.len()).unwrap_or(u32::MAX);
        match (Arc::clone(&session.signed_bodies).try_acquire_many_owned(more), &mut room) {
            (Ok(more), Some(room)) => room.merge(more),
            (Ok(more), room) => *room = Some(more),
            (Err(_), _) => return Err(too_many(record)),
        }
        whole.extend_from_slice(&data);
    }
    Ok(Payload { hash: hash(&whole), body: Body::read(whole.into(), room) })
}

fn is_hash(claim: &str) -> bool {
    claim.len() == 64 && claim.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn signed_in_parts(record: &Record, to: &Destination) -> Page {
    let refusal = Refusal::new(
        "egress/secret-payload",
        format!("the request to {to} signs its body in parts, with a key that is only a placeholder"),
        "let the client send the body unsigned or whole; over https, SDKs of AWS do so by default",
    );
    record.deny(&refusal);
    Page::denied(refusal)
}

fn too_long(record: &Record, to: &Destination) -> Page {
    let refusal = Refusal::new(
        "egress/secret-payload",
        format!("the body of a request to {to} must be signed, and is longer than {SIGNED_BODY_MAX} bytes"),
        "send less at once",
    );
    record.deny(&refusal);
    Page::new(http::StatusCode::PAYLOAD_TOO_LARGE, refusal)
}

fn too_many(record: &Record) -> Page {
    let refusal = Refusal::new(
        "egress/secret-payload",
        format!("bodies of requests that must be signed have more than {SIGNED_BODIES_MAX} bytes together"),
        "send fewer at once",
    );
    record.deny(&refusal);
    Page::too_many(refusal)
}
