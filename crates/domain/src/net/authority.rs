//! Destinations: a host with a port, and their text form `host:port` or `[v6]:port`.

use std::fmt;

use crate::net::host::{Host, HostError};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Destination {
    pub host: Host,
    /// Never 0 if it was parsed.
    pub port: u16,
}

/// Parses `host:port` or `[v6]:port`. Without a port it takes `default_port`. User information, empty ports and IPv6 addresses
/// without brackets are refused.
pub fn parse_authority(bytes: &[u8], default_port: Option<u16>) -> Result<Destination, HostError> {
    let (host, port) = if let Some(rest) = bytes.strip_prefix(b"[") {
        let end = rest.iter().position(|byte| *byte == b']').ok_or(HostError::Brackets)?;
        let host = Host::parse(&rest[..end])?;
        if !matches!(host, Host::V6(_)) {
            return Err(HostError::Brackets);
        }
        let port = match &rest[end + 1..] {
            [] => None,
            [b':', port @ ..] => Some(port),
            _ => return Err(HostError::Brackets),
        };
        (host, port)
    } else {
        let mut parts = bytes.splitn(3, |byte| *byte == b':');
        let host = parts.next().unwrap_or_default();
        let port = parts.next();
        if parts.next().is_some() {
            return Err(HostError::Brackets);
        }
        (Host::parse(host)?, port)
    };
    let port = match port {
        Some(digits) => parse_port(digits)?,
        None => default_port.ok_or(HostError::NoPort)?,
    };
    Ok(Destination { host, port })
}

/// A port from 1 to 65535, in decimal, without a sign or leading zeros.
pub(super) fn parse_port(digits: &[u8]) -> Result<u16, HostError> {
    if !matches!(digits, [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit)) {
        return Err(HostError::Port);
    }
    str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).ok_or(HostError::Port)
}

/// An IPv6 address stands in brackets.
impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::V6(address) => write!(f, "[{address}]:{}", self.port),
            host => write!(f, "{host}:{}", self.port),
        }
    }
}
