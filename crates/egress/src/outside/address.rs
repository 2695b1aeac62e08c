//! URLs: one strict parser, for the operator's allowlists, for models' providers and for the requests of agents. Hosts are parsed as in
//! network rules.
//!
//! The compared URL is the one that is sent: both sides are normalised, and the request is made from the normal form.
//! Anything that a service or a proxy could interpret differently is rejected: dot segments, encoded dots, slashes
//! and percent signs, backslashes, path parameters, user names and fragments. So no spelling of a URL can leave an allowed path.

use std::fmt;

use super::Security;
use saggar_domain::net::{Destination, Host, Rule, parse_authority};

/// Networks of one's own. Link-local addresses and those of metadata services are not among them.
const OWN_NETWORKS: [&str; 7] =
    ["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "[::1]", "[fc00::]/7"];

/// What a name may lead to, beside public addresses, if the operator has named a service of their own.
pub fn own_networks(port: u16) -> impl Iterator<Item = Rule> {
    OWN_NETWORKS.iter().filter_map(move |network| format!("{network}:{port}").parse::<Rule>().ok())
}

const URL_LEN_MAX: usize = 8192;

/// A URL in its normal form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAddress {
    security: Security,
    to: Destination,
    /// Begins with a slash, and has no dot segments.
    path: String,
    query: Option<String>,
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
        let (scheme, rest) =
            text.split_once("://").ok_or(AddressError("it does not begin with http:// or https://"))?;
        let security = match scheme.to_ascii_lowercase().as_str() {
            "http" => Security::Plain,
            "https" => Security::Tls,
            _ => return Err(AddressError("it does not begin with http:// or https://")),
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
        let to = parse_authority(authority.as_bytes(), Some(port_of(security)))
            .map_err(|_| AddressError("its host or port is not plain, such as example.com, 127.0.0.1:8080 or [::1]"))?;
        Ok(Self { security, to, path: path_of(path)?, query })
    }

    pub fn security(&self) -> Security {
        self.security
    }

    pub fn to(&self) -> &Destination {
        &self.to
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether it has a query.
    pub fn has_query(&self) -> bool {
        self.query.is_some()
    }

    pub fn scheme(&self) -> &'static str {
        match self.security {
            Security::Plain => "http",
            Security::Tls => "https",
        }
    }

    /// The value of the `Host` header: without the scheme's own port.
    pub fn authority(&self) -> String {
        match &self.to.host {
            _ if self.to.port != port_of(self.security) => self.to.to_string(),
            Host::V6(address) => format!("[{address}]"),
            host @ (Host::Name(_) | Host::V4(_)) => host.to_string(),
        }
    }

    /// The target in the request's first line.
    pub fn target(&self) -> String {
        match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        }
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme(), self.authority(), self.target())
    }
}

fn port_of(security: Security) -> u16 {
    match security {
        Security::Plain => 80,
        Security::Tls => 443,
    }
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
