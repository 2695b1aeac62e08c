//! The header `Idempotency-Key`: repeating a request returns the same object.

use http::HeaderMap;
use saggar_api::route;
use saggar_store::{Idempotency, IdempotencyKey, RequestHash};

use crate::refusal::Refusal;

/// Identifies the request by its meaning, not by its spelling.
pub fn idempotency(headers: &HeaderMap, create: &impl serde::Serialize) -> Result<Option<Idempotency>, Refusal> {
    let Some(value) = headers.get(route::header::IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.to_str().ok().and_then(IdempotencyKey::parse).ok_or_else(|| {
        Refusal::invalid("the Idempotency-Key is invalid", "use 1 to 255 visible ASCII characters, such as a UUID")
    })?;
    let request = serde_json::to_vec(create).map_err(|_| Refusal::internal())?;
    Ok(Some(Idempotency { key, request_hash: RequestHash::of(&request) }))
}

#[cfg(test)]
mod tests {
    use saggar_api::CreateSandbox;

    use super::*;

    /// Requests that clients made before the spec had a type of its own, and the bytes that were hashed for each.
    const BEFORE: [[&str; 2]; 2] = [
        [
            r#"{"template":"host","labels":{"a":"b"},"env":{"A":"1","B":"two words"},"limits":{"memory":"512M","cpus":0.5,"pids":64,"disk":"100M","files":256,"output":"64K"},"ttl":"10m","on_timeout":"pause","idle_timeout":"5m","network":"none","user":"root","auto_resume":true,"ports":{"public":[8080]}}"#,
            r#"{"template":"host","labels":{"a":"b"},"env":{"A":"1","B":"two words"},"limits":{"memory":"512M","cpus":"0.5","pids":"64","disk":"100M","files":"256","output":"64K"},"ttl":"10m","on_timeout":"pause","idle_timeout":"5m","network":"none","user":"root","auto_resume":true,"ports":{"public":[8080]}}"#,
        ],
        [
            r#"{"limits":{"memory":1073741824},"user":"user"}"#,
            r#"{"template":"base","limits":{"memory":"1G"},"on_timeout":"kill","network":"none","user":"user","auto_resume":false,"ports":{"public":[]}}"#,
        ],
    ];

    #[test]
    fn a_request_repeated_across_an_upgrade_is_the_same_request() {
        for [body, hashed] in BEFORE {
            let create: CreateSandbox = serde_json::from_str(body).unwrap();
            assert_eq!(serde_json::to_string(&create).unwrap(), hashed);
            let headers = HeaderMap::from_iter([("idempotency-key".parse().unwrap(), "k".parse().unwrap())]);
            let Ok(Some(idempotency)) = idempotency(&headers, &create) else { panic!("it has a key") };
            assert_eq!(idempotency.request_hash, RequestHash::of(hashed.as_bytes()));
        }
    }
}
