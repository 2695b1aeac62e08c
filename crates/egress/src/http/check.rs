//! Checks of a request's head: one meaning only, and meant for the destination of its connection.
//!
//! hyper has refused folded headers and bad characters before, and reads chunked bodies itself, so nothing of a message's framing is
//! passed on: the message to the server is written anew.

use http::header::{HOST, TRANSFER_ENCODING};
use http::request::Parts;
use http::{HeaderValue, Version};
use saggar_domain::net::{Destination, Host, Refusal, parse_authority};
use saggar_jail::Rule;

use crate::http::framing::Framing;
use crate::refuse::Page;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// A destination as a `Host` header has it: without the scheme's own port.
pub(crate) fn authority(to: &Destination, scheme: Scheme) -> String {
    match &to.host {
        _ if to.port != scheme.port() => to.to_string(),
        Host::V6(address) => format!("[{address}]"),
        host => host.to_string(),
    }
}

pub(crate) fn framing(parts: &Parts, framing: &Framing) -> Result<(), Page> {
    if !Rule::EgressFraming.is_on() {
        return Ok(());
    }
    if framing.is_ambiguous() {
        return Err(ambiguous("the length of the request's body is given more than once", "give it once"));
    }
    let mut encodings = parts.headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(encoding) = encodings.next()
        && (encodings.next().is_some() || !encoding.as_bytes().eq_ignore_ascii_case(b"chunked"))
    {
        return Err(ambiguous("the only Transfer-Encoding that is understood is chunked", "send the body as it is"));
    }
    Ok(())
}

/// The request of a connection whose destination is known.
pub(crate) fn agrees(parts: &Parts, scheme: Scheme, to: &Destination, known: &HeaderValue) -> Result<(), Page> {
    let host = host_header(parts)?;
    if parts.uri.authority().is_none() && host == Some(known) {
        return Ok(());
    }
    let asked = asked(parts, scheme, host)?;
    if asked != *to && Rule::EgressHost.is_on() {
        return Err(Page::misdirected(Refusal::new(
            "egress/host",
            format!("the connection leads to {to}, but the request is for {asked}"),
            "connect to the host that the request is for",
        )));
    }
    Ok(())
}

/// The destination of a request to a proxy, `GET http://host/path`.
pub(crate) fn proxied(parts: &Parts) -> Result<Destination, Page> {
    let host = host_header(parts)?;
    if parts.uri.authority().is_none() {
        return Err(ambiguous(
            "this is a proxy, and the request has no host",
            "give the client this address as its proxy, not as its server",
        ));
    }
    asked(parts, Scheme::Http, host)
}

/// The destination of `CONNECT host:port`.
pub(crate) fn connected(parts: &Parts) -> Result<Destination, Page> {
    let Some(authority) = parts.uri.authority() else {
        return Err(ambiguous("CONNECT without a host", "write CONNECT host:port"));
    };
    let to = parse(authority.as_str().as_bytes(), None)?;
    // Some clients leave the port out of the header.
    if let Some(host) = host_header(parts)?
        && parse(host.as_bytes(), Some(to.port))? != to
    {
        return Err(ambiguous("CONNECT and its Host header name different hosts", "name the same host in both"));
    }
    Ok(to)
}

/// What the request line and the `Host` header say, if they agree.
fn asked(parts: &Parts, scheme: Scheme, host: Option<&HeaderValue>) -> Result<Destination, Page> {
    if let Some(asked) = parts.uri.scheme_str()
        && asked != scheme.as_str()
    {
        return Err(ambiguous(
            &format!("a request for {asked}:// came over {}", scheme.as_str()),
            "use the connection of the request's own scheme",
        ));
    }
    let line = match parts.uri.authority() {
        Some(authority) => Some(parse(authority.as_str().as_bytes(), Some(scheme.port()))?),
        None => None,
    };
    let header = match host {
        Some(host) => Some(parse(host.as_bytes(), Some(scheme.port()))?),
        None => None,
    };
    match (line, header) {
        (Some(line), Some(header)) if line != header => {
            Err(ambiguous("the request line and the Host header name different hosts", "name the same host in both"))
        }
        (Some(asked), _) | (None, Some(asked)) => Ok(asked),
        (None, None) => Err(ambiguous("the request names no host", "send a Host header")),
    }
}

fn host_header(parts: &Parts) -> Result<Option<&HeaderValue>, Page> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let first = hosts.next();
    if hosts.next().is_some() {
        return Err(ambiguous("the request has more than one Host header", "send one"));
    }
    // A proxy may be asked without one in HTTP/1.0 alone, and HTTP/2 has a field of its own.
    if first.is_none() && parts.version == Version::HTTP_11 {
        return Err(ambiguous("the request has no Host header", "send one"));
    }
    Ok(first)
}

fn parse(authority: &[u8], port: Option<u16>) -> Result<Destination, Page> {
    parse_authority(authority, port).map_err(|error| {
        ambiguous(&format!("the request's host is not acceptable: {error}"), "write a plain host name")
    })
}

fn ambiguous(message: &str, help: &str) -> Page {
    Page::ambiguous(Refusal::new("egress/ambiguous-request", message, help))
}

#[cfg(test)]
mod tests {
    use http::{Request, StatusCode};

    use super::*;

    fn parts(uri: &str, hosts: &[&str]) -> Parts {
        let mut request = Request::builder().uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn check_agrees(uri: &str, hosts: &[&str], expected: Result<(), StatusCode>) {
        let to = parse_authority(b"a.test:443", None).unwrap();
        let known = HeaderValue::from_static("a.test");
        let found = agrees(&parts(uri, hosts), Scheme::Https, &to, &known).map_err(|page| page.status);
        assert_eq!(found, expected, "{uri} {hosts:?}");
    }

    #[test]
    fn a_request_must_be_for_the_destination_of_its_connection() {
        let (bad, misdirected) = (Err(StatusCode::BAD_REQUEST), Err(StatusCode::MISDIRECTED_REQUEST));
        check_agrees("/", &["a.test"], Ok(()));
        check_agrees("/", &["A.Test:443"], Ok(()));
        check_agrees("/", &["a.test."], Ok(()));
        check_agrees("https://a.test/", &["a.test"], Ok(()));
        check_agrees("/", &["b.test"], misdirected);
        check_agrees("/", &["a.test:444"], misdirected);
        check_agrees("https://b.test/", &["b.test"], misdirected);
        check_agrees("/", &[], bad);
        check_agrees("/", &["a.test", "a.test"], bad);
        check_agrees("/", &["a.test", "b.test"], bad);
        check_agrees("https://b.test/", &["a.test"], bad);
        check_agrees("https://a.test/", &["b.test"], bad);
        check_agrees("http://a.test/", &["a.test"], bad);
        check_agrees("https://x@a.test/", &["a.test"], bad);
        check_agrees("/", &["x@a.test"], bad);
        check_agrees("/", &["a.test#b"], bad);
        check_agrees("/", &["a.test\\b"], bad);
        check_agrees("/", &["a.test, b.test"], bad);
        check_agrees("/", &[""], bad);
    }

    #[test]
    fn a_proxy_is_asked_with_a_whole_address() {
        let ok = proxied(&parts("http://a.test:8080/x", &["a.test:8080"])).unwrap();
        assert_eq!(ok.to_string(), "a.test:8080");
        for (uri, hosts) in [
            ("/", ["a.test"]),
            ("https://a.test/", ["a.test"]),
            ("http://a.test/", ["b.test"]),
            ("http://a@b.test/", ["b.test"]),
        ] {
            assert_eq!(proxied(&parts(uri, &hosts)).unwrap_err().status, StatusCode::BAD_REQUEST, "{uri}");
        }
    }

    #[test]
    fn other_transfer_encodings_than_chunked_are_refused() {
        for (value, expected) in [
            ("chunked", true),
            ("Chunked", true),
            ("gzip, chunked", false),
            ("identity", false),
            ("chunked, chunked", false),
        ] {
            let request = Request::builder().header(TRANSFER_ENCODING, value).body(()).unwrap();
            assert_eq!(framing(&request.into_parts().0, &Framing::default()).is_ok(), expected, "{value}");
        }
    }
}
