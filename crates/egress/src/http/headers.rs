//! Headers of one hop: they say something about a connection, not about the message, and end here. And headers that a secret's
//! request and answer must not have.

use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, EXPECT, HeaderMap, HeaderName, HeaderValue, IF_RANGE,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RANGE, TE, TRANSFER_ENCODING, UPGRADE,
};

use crate::secret::Patterns;

const SEC_WEBSOCKET_EXTENSIONS: HeaderName = HeaderName::from_static("sec-websocket-extensions");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
/// Headers that a `Connection` header may name for removal.
const NAMED_MAX: usize = 32;

/// Removes headers that belong to the client's connection. `TE: trailers` stays: gRPC wants it, and we pass trailers on.
pub(crate) fn strip_request(headers: &mut HeaderMap) {
    let wants_trailers =
        headers.get_all(TE).iter().any(|value| tokens(value).any(|token| token.eq_ignore_ascii_case("trailers")));
    strip(headers);
    headers.remove(PROXY_AUTHORIZATION);
    headers.remove(HTTP2_SETTINGS);
    headers.remove(TE);
    // Answered by us as soon as the body is wanted.
    headers.remove(EXPECT);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Removes headers that belong to the server's connection.
pub(crate) fn strip_response(headers: &mut HeaderMap) {
    strip(headers);
    headers.remove(PROXY_AUTHENTICATE);
}

/// Asks for an answer in which values can be found: nothing is compressed.
pub(crate) fn ask_for_plain_answer(headers: &mut HeaderMap) {
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    // Parts of an answer could show a value piece by piece.
    headers.remove(RANGE);
    headers.remove(IF_RANGE);
    headers.remove(SEC_WEBSOCKET_EXTENSIONS);
}

/// Whether the body, or the WebSocket that follows, is compressed or otherwise encoded.
pub(crate) fn is_encoded(headers: &HeaderMap) -> bool {
    let has_other = |name: HeaderName, plain: &[u8]| {
        let words = headers.get_all(name).into_iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        words.map(<[u8]>::trim_ascii).any(|word| !word.is_empty() && !word.eq_ignore_ascii_case(plain))
    };
    headers.contains_key(SEC_WEBSOCKET_EXTENSIONS)
        || has_other(CONTENT_ENCODING, b"identity")
        || has_other(TRANSFER_ENCODING, b"chunked")
}

/// Removes headers by their name with `-` for `_`: some servers take `x_api_key` for `x-api-key`.
pub(crate) fn remove_folded(headers: &mut HeaderMap, is_meant: impl Fn(&str) -> bool) {
    let is_meant = |name: &&HeaderName| is_meant(&name.as_str().replace('_', "-"));
    let meant: Vec<HeaderName> = headers.keys().filter(is_meant).cloned().collect();
    for name in meant {
        headers.remove(name);
    }
}

/// Replaces values of secrets. A header that has one in its name is removed.
pub(crate) fn scrub(headers: &mut HeaderMap, patterns: &Patterns) {
    let telling: Vec<HeaderName> = headers.keys().filter(|name| patterns.is_in_name(name.as_str())).cloned().collect();
    for name in telling {
        headers.remove(name);
    }
    for value in headers.values_mut() {
        if let Some(scrubbed) = patterns.scrubbed(value.as_bytes()) {
            *value = HeaderValue::from_bytes(&scrubbed).unwrap_or_else(|_| HeaderValue::from_static("*"));
        }
    }
}

/// Whether an HTTP/1.1 message wants to continue as a WebSocket. Other upgrades are not offered to servers.
pub(crate) fn wants_websocket(headers: &HeaderMap) -> bool {
    let mut upgrades = headers.get_all(UPGRADE).iter();
    let is_websocket = upgrades.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    is_websocket && upgrades.next().is_none() && connection_names(headers, "upgrade")
}

fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .flat_map(tokens)
            .filter(|token| !["close", "keep-alive", "upgrade"].iter().any(|known| known.eq_ignore_ascii_case(token)))
            .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
            .take(NAMED_MAX)
            .collect();
        for name in named {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    for name in [KEEP_ALIVE, PROXY_CONNECTION, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
}

fn connection_names(headers: &HeaderMap, wanted: &str) -> bool {
    headers.get_all(CONNECTION).iter().any(|value| tokens(value).any(|token| token.eq_ignore_ascii_case(wanted)))
}

fn tokens(value: &HeaderValue) -> impl Iterator<Item = &str> {
    value.to_str().unwrap_or_default().split(',').map(str::trim).filter(|token| !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn headers_of_one_hop_are_removed_with_those_that_connection_names() {
        let mut headers = map(&[
            ("connection", "keep-alive, x-hop"),
            ("connection", "Upgrade"),
            ("x-hop", "1"),
            ("x-end", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic eDp5"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABk"),
            ("expect", "100-continue"),
        ]);
        strip_request(&mut headers);
        assert_eq!(headers, map(&[("x-end", "1"), ("te", "trailers")]));
    }

    #[test]
    fn only_a_websocket_is_an_upgrade() {
        assert!(wants_websocket(&map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")])));
        assert!(!wants_websocket(&map(&[("connection", "Upgrade, HTTP2-Settings"), ("upgrade", "h2c")])));
        assert!(!wants_websocket(&map(&[("connection", "Upgrade"), ("upgrade", "websocket, h2c")])));
        assert!(!wants_websocket(&map(&[("upgrade", "websocket")])));
    }
}
