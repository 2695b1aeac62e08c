//! The page that tells a program why it may not do something, and its user what to do about it.
//!
//! Programs show different parts of an answer: some the reason phrase alone (wget, npm, apt), some a text body (git, curl), some
//! only a JSON error (model clients). So the reason is in all three. It holds no secret and no path of the host.

use http::header::{ACCEPT, CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, Version};
use hyper::body::Bytes;
use hyper::ext::ReasonPhrase;
use saggar_domain::net::Refusal;
use serde::Serialize;

/// Which rule refused, for programs.
pub const RULE_HEADER: HeaderName = HeaderName::from_static("x-saggar-rule");
const PHRASE_MAX: usize = 400;

/// A refusal with its HTTP status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub status: StatusCode,
    pub refusal: Refusal,
    pub after: After,
}

/// Whether the connection can be trusted after the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    KeepOpen,
    /// The request was ambiguous, so the place where the next one begins may be, too.
    Close,
}

/// How a program wants to read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reader {
    pub json: bool,
    pub version: Version,
}

#[derive(Serialize)]
struct Shown<'a> {
    error: Error<'a>,
}

#[derive(Serialize)]
struct Error<'a> {
    message: String,
    r#type: &'static str,
    rule: &'a str,
    help: &'a str,
}

impl Page {
    pub fn new(status: StatusCode, refusal: Refusal) -> Self {
        Self { status, refusal, after: After::KeepOpen }
    }

    pub fn denied(refusal: Refusal) -> Self {
        Self::new(StatusCode::FORBIDDEN, refusal)
    }

    /// A request that can be read in more than one way.
    pub fn ambiguous(refusal: Refusal) -> Self {
        Self { status: StatusCode::BAD_REQUEST, refusal, after: After::Close }
    }

    /// A request for another host than the connection's.
    pub fn misdirected(refusal: Refusal) -> Self {
        Self { status: StatusCode::MISDIRECTED_REQUEST, refusal, after: After::Close }
    }

    /// The server can't be reached, or can't be trusted.
    pub fn failed(refusal: Refusal) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, refusal)
    }

    /// It would be allowed, but not now.
    pub fn not_yet(refusal: Refusal) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, refusal)
    }

    pub fn too_many(refusal: Refusal) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, refusal)
    }

    pub fn response(&self, reader: Reader) -> Response<Bytes> {
        let Refusal { rule, message, help } = &self.refusal;
        let (kind, body) = if reader.json {
            let r#type = if self.status.is_server_error() { "saggar_egress_failed" } else { "saggar_egress_denied" };
            // Model clients show the message alone.
            let error = Error { message: format!("{message} ({help})"), r#type, rule, help };
            let json = serde_json::to_vec(&Shown { error }).unwrap_or_default();
            ("application/json", json)
        } else {
            let verb = if self.status.is_server_error() { "failed" } else { "denied" };
            let text = format!("saggar: {verb}: {message}\nrule: {rule}\nhelp: {help}\n");
            ("text/plain; charset=utf-8", text.into_bytes())
        };
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Ok(rule) = HeaderValue::from_str(rule) {
            headers.insert(RULE_HEADER, rule);
        }
        if reader.version < Version::HTTP_2 {
            if self.after == After::Close {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            if let Ok(phrase) = ReasonPhrase::try_from(phrase(&self.refusal)) {
                response.extensions_mut().insert(phrase);
            }
        }
        response
    }
}

impl Reader {
    pub fn of(version: Version, headers: &HeaderMap) -> Self {
        let mentions = |name| {
            let values: http::header::GetAll<'_, HeaderValue> = headers.get_all(name);
            values.iter().any(|value| value.to_str().is_ok_and(|value| value.contains("json")))
        };
        Self { json: mentions(ACCEPT) || mentions(CONTENT_TYPE), version }
    }
}

/// One printable line of ASCII.
fn phrase(refusal: &Refusal) -> Vec<u8> {
    let text = format!("saggar: {} [{}] {}", refusal.message, refusal.rule, refusal.help);
    let printable = text.chars().map(|character| match character {
        ' '..='~' => character as u8,
        _ => b'?',
    });
    printable.take(PHRASE_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        Page::denied(Refusal::new("egress/default", "no rule allows x.test:443", "allow it with: --allow x.test"))
    }

    fn reader(accept: &'static str) -> Reader {
        let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
        Reader::of(Version::HTTP_11, &headers)
    }

    #[test]
    fn text_names_rule_and_remedy_in_body_header_and_phrase() {
        let response = page().response(reader("*/*"));
        assert_eq!(
            response.body(),
            "saggar: denied: no rule allows x.test:443\nrule: egress/default\nhelp: allow it with: --allow x.test\n"
        );
        assert_eq!(response.headers()[RULE_HEADER], "egress/default");
        let phrase = response.extensions().get::<ReasonPhrase>().unwrap().as_bytes();
        assert_eq!(phrase, b"saggar: no rule allows x.test:443 [egress/default] allow it with: --allow x.test");
    }

    #[test]
    fn json_is_given_to_those_who_accept_or_send_it() {
        let sends = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        for reader in [reader("application/json"), Reader::of(Version::HTTP_11, &sends)] {
            let response = page().response(reader);
            let json: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
            assert_eq!(json["error"]["type"], "saggar_egress_denied");
            assert_eq!(json["error"]["rule"], "egress/default");
            assert_eq!(json["error"]["help"], "allow it with: --allow x.test");
            assert_eq!(json["error"]["message"], "no rule allows x.test:443 (allow it with: --allow x.test)");
        }
    }

    #[test]
    fn a_phrase_is_one_bounded_line_of_ascii() {
        let refusal = Refusal::new("r", format!("é\r\nX: y{}", "z".repeat(1000)), "h");
        let phrase = phrase(&refusal);
        assert!(phrase.len() <= PHRASE_MAX && phrase.iter().all(|byte| (b' '..=b'~').contains(byte)));
    }

    #[test]
    fn http_2_has_neither_phrase_nor_connection_header() {
        let page = Page::ambiguous(page().refusal);
        let response = page.response(Reader { json: false, version: Version::HTTP_2 });
        assert!(response.extensions().get::<ReasonPhrase>().is_none());
        assert!(!response.headers().contains_key(CONNECTION));
    }
}
