//! The header `Idempotency-Key`: the same request again gives the same object.

use http::HeaderMap;
use saggar_api::route;
use saggar_store::{Idempotency, IdempotencyKey, RequestHash};

use crate::refusal::Refusal;

/// What the request is, by what it asks for and not by how it is written.
pub fn idempotency(headers: &HeaderMap, create: &impl serde::Serialize) -> Result<Option<Idempotency>, Refusal> {
    let Some(value) = headers.get(route::header::IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.to_str().ok().and_then(IdempotencyKey::parse).ok_or_else(|| {
        Refusal::invalid("the Idempotency-Key can't be one", "use 1 to 255 visible ASCII characters, such as a UUID")
    })?;
    let request = serde_json::to_vec(create).map_err(|_| Refusal::internal())?;
    Ok(Some(Idempotency { key, request_hash: RequestHash::of(&request) }))
}
