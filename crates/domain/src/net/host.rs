//! Hosts: a name or an address, parsed in one way for every entrance.
//!
//! CONNECT, SOCKS, the `Host` header, `:authority`, SNI, DNS questions, rules and URLs all use this parser. A host has one
//! canonical form: equal hosts are equal values. Text that some resolver would read as an address in another notation
//! (`0177.0.0.1`, `0x7f.1`, `2130706433`) is refused, never converted.
//!
//! Names beyond ASCII are refused with the advice to write punycode. Converting them needs Unicode tables of several hundred
//! kilobytes in a program that starts once per sandbox, and showing punycode is what reveals lookalikes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// Maximum length of a name, in bytes, without the trailing dot.
const NAME_LEN_MAX: usize = 253;
/// Maximum length of a label, in bytes.
const LABEL_LEN_MAX: usize = 63;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    Name(HostName),
    V4(Ipv4Addr),
    /// Without a zone. Not unmapped: an IPv4 address inside an IPv6 address stays what was written.
    V6(Ipv6Addr),
}

impl Host {
    /// Parses a name, a dotted quad or an IPv6 address without brackets.
    pub fn parse(bytes: &[u8]) -> Result<Self, HostError> {
        let text = plain(bytes)?;
        if text.contains(':') {
            return text.parse().map(Self::V6).map_err(|_| HostError::NotAnAddress);
        }
        // Accepts four decimal numbers without leading zeros, and nothing else.
        if let Ok(address) = text.parse() {
            return Ok(Self::V4(address));
        }
        HostName::from_plain(text).map(Self::Name)
    }

    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Name(_) => None,
            Self::V4(address) => Some(IpAddr::V4(*address)),
            Self::V6(address) => Some(IpAddr::V6(*address)),
        }
    }

    pub fn name(&self) -> Option<&HostName> {
        match self {
            Self::Name(name) => Some(name),
            Self::V4(_) | Self::V6(_) => None,
        }
    }
}

impl From<IpAddr> for Host {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6(address),
        }
    }
}

/// The canonical text; an IPv6 address has no brackets.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::V4(address) => address.fmt(f),
            Self::V6(address) => address.fmt(f),
        }
    }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        Self::parse(text.as_bytes())
    }
}

/// A DNS name: lower-case ASCII letters, digits, hyphens and dots, without a trailing dot. Never an address in any notation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(String);

impl HostName {
    pub fn parse(bytes: &[u8]) -> Result<Self, HostError> {
        Self::from_plain(plain(bytes)?)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it lies below `parent`, at any depth. A name doesn't lie below itself.
    pub fn is_below(&self, parent: &HostName) -> bool {
        self.0.strip_suffix(&parent.0).is_some_and(|front| front.ends_with('.'))
    }

    fn from_plain(text: &str) -> Result<Self, HostError> {
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        if name.len() > NAME_LEN_MAX {
            return Err(HostError::TooLong);
        }
        let mut last = "";
        for label in name.split('.') {
            check_label(label)?;
            last = label;
        }
        if reads_as_a_number(last) {
            return Err(HostError::LooksLikeAnAddress);
        }
        Ok(Self(name))
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for HostName {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        Self::parse(text.as_bytes())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("the host is empty")]
    Empty,
    #[error("the host name is longer than 253 bytes, or one of its labels is longer than 63")]
    TooLong,
    #[error("the host name has an empty label")]
    EmptyLabel,
    #[error("a label of the host name begins or ends with a hyphen")]
    Hyphen,
    #[error("the host name has characters beyond ASCII: write it in punycode (xn--…)")]
    NotAscii,
    #[error("the host has the character {:?}, which no host has", *.0 as char)]
    Character(u8),
    #[error("the host can be read as an address in another notation: write an IPv4 address as four decimal numbers")]
    LooksLikeAnAddress,
    #[error("the host is not an IPv6 address")]
    NotAnAddress,
    #[error("an IPv6 address with a port is written as [ADDRESS]:PORT")]
    Brackets,
    #[error("the port is not a number from 1 to 65535")]
    Port,
    #[error("the port is missing")]
    NoPort,
}

/// The bytes as text, if all of them may occur in a host.
fn plain(bytes: &[u8]) -> Result<&str, HostError> {
    if bytes.is_empty() {
        return Err(HostError::Empty);
    }
    for &byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b':' => {}
            0x80.. => return Err(HostError::NotAscii),
            other => return Err(HostError::Character(other)),
        }
    }
    Ok(str::from_utf8(bytes).expect("every byte is ASCII"))
}

fn check_label(label: &str) -> Result<(), HostError> {
    if label.is_empty() {
        return Err(HostError::EmptyLabel);
    }
    if label.len() > LABEL_LEN_MAX {
        return Err(HostError::TooLong);
    }
    if let Some(other) = label.bytes().find(|byte| !matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-')) {
        return Err(HostError::Character(other));
    }
    if label.starts_with('-') || label.ends_with('-') {
        return Err(HostError::Hyphen);
    }
    Ok(())
}

/// As `inet_aton` and browsers read the last label: decimal, octal or hexadecimal.
fn reads_as_a_number(label: &str) -> bool {
    label.bytes().all(|byte| byte.is_ascii_digit())
        || label.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
