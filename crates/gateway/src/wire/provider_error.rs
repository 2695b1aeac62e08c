//! What a provider says is wrong.

use std::time::Duration;

use http::HeaderMap;
use serde_json::Value;

use crate::failure::{Failure, FailureKind};

/// Maximum length of a provider's text in a message, in characters.
const SAID_CHARS_MAX: usize = 300;
/// Stands where a provider has repeated its key.
pub(crate) const KEY_REMOVED: &str = "(key)";
/// Longer waits are not believed.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// The failure that an answer with another status than 200 means. `key` is never part of it, even if the provider repeats it.
pub(crate) fn provider_error(
    provider: &str,
    status: u16,
    headers: &HeaderMap,
    body: &[u8],
    key: Option<&str>,
) -> Failure {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let text = json.as_ref().and_then(message).unwrap_or_default();
    let text = match key {
        Some(key) => text.replace(key, KEY_REMOVED),
        None => text,
    };
    let said = said(&text);
    let wait = retry_after(headers).or_else(|| json.as_ref().and_then(retry_delay));
    let (kind, what) = match status {
        400 | 409 | 415 | 422 => (FailureKind::InvalidRequest, "refused the request"),
        413 => (FailureKind::TooLarge, "refused the request as too large"),
        401 | 403 => (FailureKind::Upstream, "refused the key that the operator has set"),
        402 => (FailureKind::Upstream, "wants to be paid"),
        404 => (FailureKind::NotFound, "doesn't know this model or path"),
        408 | 504 => (FailureKind::Timeout, "took too long"),
        429 => (FailureKind::RateLimited, "limits the rate of requests"),
        503 | 529 => (FailureKind::Overloaded, "is overloaded"),
        300..=399 => (FailureKind::Upstream, "redirects, and redirects are not followed"),
        _ => (FailureKind::Upstream, "failed"),
    };
    Failure::new(kind, format!("provider {provider} {what} (status {status}){said}")).after(wait)
}

/// A provider's answer without its key; `None` if the key isn't in it. Many clients share a key, and none of them is to learn it. One that
/// is shorter than any provider's would be found in ordinary text.
pub(crate) fn without_key(answer: &str, key: &str) -> Option<String> {
    const LEN_MIN: usize = 12;
    (key.len() >= LEN_MIN && answer.contains(key)).then(|| answer.replace(key, KEY_REMOVED))
}

/// A provider's text, to be appended to a message.
pub(crate) fn said(text: &str) -> String {
    let text: String = text.chars().take(SAID_CHARS_MAX).collect();
    if text.trim().is_empty() { String::new() } else { format!(": {}", text.trim()) }
}

fn message(json: &Value) -> Option<String> {
    let error = json.get(0).unwrap_or(json);
    let error = error.get("error").unwrap_or(error);
    let text = error.as_str().or_else(|| error.get("message")?.as_str()).or_else(|| error.get("detail")?.as_str())?;
    Some(text.to_owned())
}

fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<f64>().ok();
    let seconds = number("retry-after-ms").map(|millis| millis / 1000.0).or_else(|| number("retry-after"))?;
    wait(seconds)
}

/// Gemini's hint: `{"error": {"details": [{"retryDelay": "13s"}]}}`.
fn retry_delay(json: &Value) -> Option<Duration> {
    let error = json.get(0).unwrap_or(json).get("error")?;
    let delay = error.get("details")?.as_array()?.iter().find_map(|detail| detail.get("retryDelay")?.as_str())?;
    wait(delay.strip_suffix('s')?.parse().ok()?)
}

fn wait(seconds: f64) -> Option<Duration> {
    (seconds.is_finite() && seconds > 0.0).then(|| Duration::from_secs_f64(seconds.min(WAIT_MAX.as_secs_f64())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_say_when_to_come_back_is_read() {
        let check = |name: &'static str, value: &str, body: &str, expected: Option<u64>| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            let failure = provider_error("p", 429, &headers, body.as_bytes(), None);
            assert_eq!(failure.retry_after.map(|wait| wait.as_millis() as u64), expected, "{name}: {value}");
        };
        check("retry-after", "7", "", Some(7_000));
        check("retry-after-ms", "70", "", Some(70));
        check("retry-after", "0", "", None);
        check("retry-after", "-3", "", None);
        check("retry-after", "soon", "", None);
        check("retry-after", "999999999", "", Some(3_600_000));
        let gemini = r#"[{"error":{"message":"m","details":[{"retryDelay":"13s"}]}}]"#;
        check("x", "y", gemini, Some(13_000));
    }

    #[test]
    fn a_key_that_a_provider_repeats_is_not_repeated() {
        let body = r#"{"error":{"message":"Incorrect API key: sk-canary-123. Go away"}}"#;
        let failure = provider_error("openai", 401, &HeaderMap::new(), body.as_bytes(), Some("sk-canary-123"));
        assert!(!failure.message.contains("canary") && failure.message.contains("Go away"), "{failure}");
        assert_eq!(failure.kind, FailureKind::Upstream, "it is the operator's key, not the client's");
        let long = format!(r#"{{"message":"{}"}}"#, "x".repeat(10_000));
        assert!(provider_error("p", 500, &HeaderMap::new(), long.as_bytes(), None).message.len() < 700);
    }
}
