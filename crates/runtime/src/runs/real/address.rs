//! URLs of the tool `http`: one strict parser, used for the operator's allowlist and for an agent's requests.
//!
//! The compared URL is the one that is sent: both sides are normalised, and the request is made from the normal form.
//! Anything that a service or a proxy could interpret differently is rejected: dot segments, encoded dots, slashes
//! and percent signs, backslashes, path parameters, user names, fragments, trailing dots, unusual spellings of IP
//! addresses. So no spelling of a URL can leave an allowed path.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// The default port of HTTP, which the normal form leaves out.
const PORT: u16 = 80;
/// Maximum length of a host name.
const HOST_LEN_MAX: usize = 253;
const LABEL_LEN_MAX: usize = 63;
const URL_LEN_MAX: usize = 8192;

/// A URL in its normal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAddress {
    host: Host,
    port: u16,
    /// Begins with a slash, and has no dot segments.
    path: String,
    query: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Host {
    Name(String),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
}

/// Why a URL is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct AddressError(&'static str);

type Parsed<T> = Result<T, AddressError>;

impl HttpAddress {
    /// Parses a URL, and rejects ambiguous ones.
    pub fn parse(text: &str) -> Parsed<Self> {
        if text.len() > URL_LEN_MAX {
            return Err(AddressError("it is too long"));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(AddressError(
                "it has a character that a URL can't have: encode it, and write names in punycode",
            ));
        }
        let rest = match text.split_at_checked("http://".len()) {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http://") => rest,
            Some(_) | None => return Err(AddressError("it does not begin with http://")),
        };
        if rest.contains('#') {
            return Err(AddressError("it has a fragment"));
        }
        if rest.contains('\\') {
            return Err(AddressError("it has a backslash"));
        }
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, Some(query_of(query)?)),
            None => (rest, None),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = authority_of(authority)?;
        Ok(Self { host, port, path: path_of(path)?, query })
    }

    /// Whether it equals that URL, or is below it.
    pub(super) fn is_below(&self, allowed: &Self) -> bool {
        let below = format!("{}/", allowed.path.trim_end_matches('/'));
        let is_path = self.path == allowed.path || self.path.starts_with(&below);
        (&self.host, self.port) == (&allowed.host, allowed.port) && is_path
    }

    /// Whether it has a query.
    pub fn has_query(&self) -> bool {
        self.query.is_some()
    }

    /// The address to connect to.
    pub(super) fn endpoint(&self) -> (String, u16) {
        let host = match &self.host {
            Host::Name(name) => name.clone(),
            Host::V4(address) => address.to_string(),
            Host::V6(address) => address.to_string(),
        };
        (host, self.port)
    }

    /// The value of the `Host` header.
    pub(super) fn authority(&self) -> String {
        let host = match &self.host {
            Host::Name(name) => name.clone(),
            Host::V4(address) => address.to_string(),
            Host::V6(address) => format!("[{address}]"),
        };
        if self.port == PORT { host } else { format!("{host}:{}", self.port) }
    }

    /// The target in the request's first line.
    pub(super) fn target(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.target())
    }
}

fn authority_of(text: &str) -> Parsed<(Host, u16)> {
    if text.contains('@') {
        return Err(AddressError("it has a user name"));
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']').ok_or(AddressError("its IPv6 address has no end"))?;
        let address = address.parse().map_err(|_| AddressError("its host is not an IPv6 address"))?;
        return match port.strip_prefix(':') {
            Some(port) => Ok((Host::V6(address), port_of(port)?)),
            None if port.is_empty() => Ok((Host::V6(address), PORT)),
            None => Err(AddressError("its host is not followed by a port")),
        };
    }
    match text.split_once(':') {
        Some((host, port)) => Ok((host_of(host)?, port_of(port)?)),
        None => Ok((host_of(text)?, PORT)),
    }
}

fn host_of(text: &str) -> Parsed<Host> {
    let name = text.to_ascii_lowercase();
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| (1..=LABEL_LEN_MAX).contains(&label.len()) && label.bytes().all(is_inner);
    if name.len() > HOST_LEN_MAX || !name.split('.').all(is_label) {
        return Err(AddressError("its host is not a valid name, such as example.com or 127.0.0.1"));
    }
    let last = name.rsplit('.').next().unwrap_or_default();
    // Resolvers accept 127.1, 0x7f.1 and 2130706433 as addresses.
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x");
    match name.parse() {
        Ok(address) => Ok(Host::V4(address)),
        Err(_) if is_number => Err(AddressError("its host is an unusual spelling of an IP address")),
        Err(_) => Ok(Host::Name(name)),
    }
}

fn port_of(text: &str) -> Parsed<u16> {
    let is_plain = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain).ok_or(AddressError("its port is not a number from 1 to 65535"))
}

fn path_of(text: &str) -> Parsed<String> {
    if text.is_empty() {
        return Ok("/".to_owned());
    }
    let segments: Vec<&str> = text.split('/').skip(1).collect();
    let mut path = String::with_capacity(text.len());
    for (index, segment) in segments.iter().enumerate() {
        if segment.is_empty() && index + 1 < segments.len() {
            return Err(AddressError("its path has an empty part (//)"));
        }
        path.push('/');
        path.push_str(&segment_of(segment)?);
    }
    Ok(path)
}

fn segment_of(text: &str) -> Parsed<String> {
    let (mut segment, mut bytes) = (String::with_capacity(text.len()), Vec::with_capacity(text.len()));
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b';' {
            return Err(AddressError("its path has a parameter (;)"));
        }
        let decoded = if byte == b'%' { escape_of(&mut rest)? } else { byte };
        match (byte, decoded) {
            (b'%', b'.' | b'/' | b'\\' | b'%' | b';') => {
                return Err(AddressError("its path has an encoded dot, slash, backslash, semicolon or percent sign"));
            }
            (b'%', 0..=0x1f | 0x7f) => return Err(AddressError("its path has an encoded control character")),
            (_, decoded) if is_unreserved(decoded) => segment.push(char::from(decoded)),
            (b'%', decoded) => segment.push_str(&format!("%{decoded:02X}")),
            (plain, _) if is_plain(plain) => segment.push(char::from(plain)),
            _ => return Err(AddressError("its path has a character that must be encoded")),
        }
        bytes.push(decoded);
    }
    if segment == "." || segment == ".." {
        return Err(AddressError("its path has a dot segment"));
    }
    // Overlong encodings of a dot or a slash are not UTF-8.
    match std::str::from_utf8(&bytes) {
        Ok(_) => Ok(segment),
        Err(_) => Err(AddressError("an encoded part of its path is not UTF-8")),
    }
}

fn query_of(text: &str) -> Parsed<String> {
    let mut query = String::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => query.push_str(&format!("%{:02X}", escape_of(&mut rest)?)),
            byte if is_unreserved(byte) || is_plain(byte) || matches!(byte, b'/' | b'?' | b';' | b'[' | b']') => {
                query.push(char::from(byte));
            }
            _ => return Err(AddressError("its query has a character that must be encoded")),
        }
    }
    Ok(query)
}

/// The byte of an escape, after its percent sign.
fn escape_of(rest: &mut impl Iterator<Item = u8>) -> Parsed<u8> {
    let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
    let value = digit().zip(digit()).map(|(high, low)| high * 16 + low);
    value.and_then(|value| u8::try_from(value).ok()).ok_or(AddressError("it has a % without two hexadecimal digits"))
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Other characters that need no encoding in a path.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b'=' | b':' | b'@')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowed_path_cannot_be_left_by_how_a_url_is_written() {
        let allowed = [
            HttpAddress::parse("http://tools.example/ok").unwrap(),
            HttpAddress::parse("http://127.0.0.1:8080").unwrap(),
            HttpAddress::parse("http://[::1]/v6/").unwrap(),
        ];
        // The requested URL, and the sent one; `None` if it is rejected.
        let table: &[(&str, Option<&str>)] = &[
            ("http://tools.example/ok", Some("http://tools.example/ok")),
            ("HTTP://Tools.EXAMPLE:80/ok/x?y=%2f&z=[1]", Some("http://tools.example/ok/x?y=%2F&z=[1]")),
            ("http://tools.example/ok/%61%2D%7Eb/", Some("http://tools.example/ok/a-~b/")),
            ("http://tools.example/ok/caf%c3%a9/a%20b", Some("http://tools.example/ok/caf%C3%A9/a%20b")),
            ("http://tools.example/o%6b/x", Some("http://tools.example/ok/x")),
            ("http://tools.example/ok/.hidden/..x/...", Some("http://tools.example/ok/.hidden/..x/...")),
            ("http://127.0.0.1:8080", Some("http://127.0.0.1:8080/")),
            ("http://[0:0::1]:80/v6/x", Some("http://[::1]/v6/x")),
            // Outside of the allowed path.
            ("http://tools.example/okay", None),
            ("http://tools.example/OK", None),
            ("http://tools.example/", None),
            ("http://tools.example:8080/ok", None),
            ("https://tools.example/ok", None),
            ("http://127.0.0.1/", None),
            ("http://[::1]/v6", None),
            ("http://[::ffff:127.0.0.1]:8080/", None),
            // Dot segments, plain and encoded once or twice.
            ("http://tools.example/ok/../admin", None),
            ("http://tools.example/ok/..", None),
            ("http://tools.example/ok/./x", None),
            ("http://tools.example/ok/%2e%2e/admin", None),
            ("http://tools.example/ok/%2E./admin", None),
            ("http://tools.example/ok/.%2e/admin", None),
            ("http://tools.example/ok/..%2fadmin", None),
            ("http://tools.example/ok/..%5cadmin", None),
            ("http://tools.example/ok/..\\admin", None),
            ("http://tools.example/ok/%252e%252e/admin", None),
            ("http://tools.example/ok/%c0%ae%c0%ae/admin", None),
            ("http://tools.example/ok/..;/admin", None),
            ("http://tools.example/ok/..%3b/admin", None),
            ("http://tools.example/ok;x=/../admin", None),
            ("http://tools.example/ok//admin", None),
            ("http://tools.example//ok", None),
            // Characters that a service might drop or take for the end.
            ("http://tools.example/ok/%00", None),
            ("http://tools.example/ok/%0d%0ax", None),
            ("http://tools.example/ok/%", None),
            ("http://tools.example/ok/%2", None),
            ("http://tools.example/ok/%zz", None),
            ("http://tools.example/ok/ x", None),
            ("http://tools.example/ok/\tx", None),
            ("http://tools.example/ok/\u{ff0e}\u{ff0e}/x", None),
            ("http://tools.example/ok#/../admin", None),
            ("http://tools.example/ok?x=\"", None),
            // Hosts.
            ("http://tools.example@evil.example/ok", None),
            ("http://evil.example@tools.example/ok", None),
            ("http://tools.example:x@evil.example/ok", None),
            ("http://tools.example\\@evil.example/ok", None),
            ("http://tools.example./ok", None),
            ("http://tools..example/ok", None),
            ("http://tools%2eexample/ok", None),
            ("http://tools\u{3002}example/ok", None),
            ("http://tools.example:/ok", None),
            ("http://tools.example:080/ok", None),
            ("http://tools.example:0/ok", None),
            ("http://tools.example:65536/ok", None),
            ("http://tools.example:8o/ok", None),
            ("http://127.1:8080/", None),
            ("http://0x7f.0.0.1:8080/", None),
            ("http://0177.0.0.1:8080/", None),
            ("http://2130706433:8080/", None),
            ("http://[::1%25lo]/v6/x", None),
            ("http://[::1/v6/x", None),
            ("http://[::1]x/v6/x", None),
            ("http:/tools.example/ok", None),
            ("//tools.example/ok", None),
            ("http:///ok", None),
            ("", None),
        ];
        for (asked, sent) in table {
            let parsed = HttpAddress::parse(asked).ok();
            let passed = parsed.filter(|address| allowed.iter().any(|allowed| address.is_below(allowed)));
            assert_eq!(passed.as_ref().map(ToString::to_string).as_deref(), *sent, "{asked}");
            // The sent URL parses as the compared one.
            if let Some(address) = passed {
                assert_eq!(HttpAddress::parse(&address.to_string()), Ok(address));
            }
        }
    }
}
