//! What is left out of a recording: values of headers and of query parameters that are credentials.
//!
//! A name decides, not the value: a value has no form by which it could be recognised. What a program sends as a body, and what a
//! server answers in one, is recorded as it is.

use http::header::{HeaderMap, HeaderValue};

use crate::secret::decoded;

/// Stands for a value that was left out. A header that has it isn't replayed.
pub(super) const REMOVED: &str = "[removed by saggar]";
/// The same in a query, where it needs no escape.
const REMOVED_IN_QUERY: &str = "REMOVED";

/// Names of headers that are left out if they contain one of these.
const PARTS: &[&str] =
    &["authorization", "cookie", "api-key", "apikey", "secret", "password", "credential", "signature"];
/// The same at the end of a name: `x-ratelimit-remaining-tokens` is a number.
const ENDS: &[&str] = &["token", "session-id", "access-key"];
/// Names of query parameters, in lower case, with `-` for `_`.
const PARAMETERS: &[&str] = &["key", "sig", "auth", "code", "x-goog-signature", "x-amz-signature"];

/// Headers whose values are URLs, which have queries of their own.
const URLS: &[&str] = &["location", "content-location", "referer"];

fn is_secret(name: &str) -> bool {
    let name = name.replace('_', "-");
    PARTS.iter().any(|part| name.contains(part)) || ENDS.iter().any(|end| name.ends_with(end))
}

pub(super) fn headers(headers: &HeaderMap) -> Vec<(String, String)> {
    let shown = |name: &str, value: &HeaderValue| match str::from_utf8(value.as_bytes()) {
        Ok(value) if URLS.contains(&name) => target(value),
        Ok(value) if !is_secret(name) => value.to_owned(),
        _ => REMOVED.to_owned(),
    };
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), shown(name.as_str(), value))).collect()
}

/// Path and query, without the values of parameters that are secret.
pub(super) fn target(target: &str) -> String {
    let Some((path, query)) = target.split_once('?') else { return target.to_owned() };
    let parameters = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if is_secret_parameter(name) => format!("{name}={REMOVED_IN_QUERY}"),
        _ => parameter.to_owned(),
    });
    format!("{path}?{}", parameters.collect::<Vec<_>>().join("&"))
}

fn is_secret_parameter(name: &str) -> bool {
    let name = String::from_utf8_lossy(&decoded(name)).to_ascii_lowercase().replace('_', "-");
    PARAMETERS.contains(&name.as_str()) || is_secret(&name)
}

#[cfg(test)]
mod tests {
    use http::HeaderName;

    use super::*;

    #[test]
    fn credentials_are_left_out() {
        for (name, is_left_out) in [
            ("authorization", true),
            ("proxy-authorization", true),
            ("cookie", true),
            ("set-cookie", true),
            ("x-api-key", true),
            ("api-key", true),
            ("x-goog-api-key", true),
            ("x-amz-security-token", true),
            ("x-auth-token", true),
            ("private-token", true),
            ("x-ratelimit-remaining-tokens", false),
            ("api_key", true),
            ("content-type", false),
            ("user-agent", false),
        ] {
            let map = HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static("canary"))]);
            let value = if is_left_out { REMOVED } else { "canary" };
            assert_eq!(headers(&map), [(name.to_owned(), value.to_owned())]);
        }
    }

    #[test]
    fn a_url_in_a_header_keeps_no_credentials() {
        let value = HeaderValue::from_static("https://a.test/cb?code=canary&page=2");
        let map = HeaderMap::from_iter([(http::header::LOCATION, value)]);
        let expected = ("location".to_owned(), "https://a.test/cb?code=REMOVED&page=2".to_owned());
        assert_eq!(headers(&map), [expected]);
    }

    #[test]
    fn a_query_keeps_its_parameters_without_their_secret_values() {
        for (given, expected) in [
            ("/x", "/x"),
            ("/x?page=2&q=key", "/x?page=2&q=key"),
            ("/x?key=canary&page=2", "/x?key=REMOVED&page=2"),
            (
                "/x?a=1&X-Amz-Signature=canary&access_token=canary",
                "/x?a=1&X-Amz-Signature=REMOVED&access_token=REMOVED",
            ),
            ("/x?API_KEY=canary=&flag", "/x?API_KEY=REMOVED&flag"),
            ("/x?api%5Fkey=canary", "/x?api%5Fkey=REMOVED"),
        ] {
            assert_eq!(target(given), expected);
        }
    }
}
