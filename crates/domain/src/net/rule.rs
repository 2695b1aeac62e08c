//! One rule, as text:
//!
//! ```text
//! [METHOD[,METHOD…] ][https://|http://]HOST[:PORT|:LOW-HIGH|:*][/PATH]    or    @set
//! ```
//!
//! A text that can't be understood exactly is an error that says what to write instead. Each rule has one canonical text,
//! which its `Display` writes. docs/network.md describes the grammar for users.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::net::address::{Range, RangeError};
use crate::net::host::{Host, HostName};
use crate::net::method::Methods;
use crate::net::path::PathPattern;
use crate::net::pattern::HostPattern;
use crate::net::ports::Ports;
use crate::net::sets::SetName;

/// Maximum length of a rule's text, in bytes.
const RULE_LEN_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule(pub(super) Kind);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Set(SetName),
    Match(Match),
}

/// What a rule matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Match {
    pub(super) methods: Methods,
    pub(super) scheme: Option<Scheme>,
    pub(super) host: HostPattern,
    pub(super) ports: Ports,
    pub(super) path: Option<PathPattern>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl Match {
    /// Whether it speaks of requests, so that a connection must be inspected to apply it.
    pub(super) fn is_about_requests(&self) -> bool {
        !self.methods.is_every() || self.path.is_some()
    }

    /// The same hosts and ports, with every method and path.
    pub(super) fn without_requests(&self) -> Self {
        Self { methods: Methods::default(), path: None, ..self.clone() }
    }
}

/// Why a text is not a rule, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RuleError(String);

impl FromStr for Rule {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        parse(text).map_err(|why| {
            let shown: String = text.chars().take(80).collect();
            RuleError(format!("{shown:?} is not a rule: {why}"))
        })
    }
}

fn parse(text: &str) -> Result<Rule, String> {
    if text.is_empty() {
        return Err("it is empty; write a host, such as api.example.com".to_owned());
    }
    if text.len() > RULE_LEN_MAX {
        return Err(format!("it is longer than {RULE_LEN_MAX} bytes"));
    }
    let (methods, rest) = match text.split_once(' ') {
        Some((methods, rest)) => (Methods::parse(methods)?, rest),
        // A shell splits a rule that isn't quoted.
        None if Methods::parse(text).is_ok() => {
            return Err(format!("a method needs a host: write '{text} HOST', in quotes"));
        }
        None => (Methods::default(), text),
    };
    if rest.is_empty() || rest.contains(char::is_whitespace) {
        return Err("write one space between the methods and the host, and no other".to_owned());
    }
    if let Some(name) = rest.strip_prefix('@') {
        if !methods.is_every() {
            return Err("a set has its own methods: leave them out".to_owned());
        }
        return SetName::parse(name).map(|name| Rule(Kind::Set(name)));
    }
    let (scheme, rest) = scheme(rest)?;
    let (host, rest) = host(rest)?;
    let (ports, rest) = ports(rest)?;
    let path = match rest {
        "" => None,
        rest => Some(PathPattern::parse(rest).map_err(|why| match why.starts_with("has ") {
            true => format!("its path {why}"),
            false => why.to_owned(),
        })?),
    };
    let ports = scheme_ports(scheme, ports)?;
    Ok(Rule(Kind::Match(Match { methods, scheme, host, ports, path })))
}

fn scheme(text: &str) -> Result<(Option<Scheme>, &str), String> {
    let Some((scheme, rest)) = text.split_once("://") else { return Ok((None, text)) };
    match scheme {
        "https" => Ok((Some(Scheme::Https), rest)),
        "http" => Ok((Some(Scheme::Http), rest)),
        "wss" | "ws" => Err(format!("write http{}:// for WebSockets too", &scheme[2..])),
        _ => Err("it can begin with https:// or http:// only; write HOST:PORT for another protocol".to_owned()),
    }
}

/// With a scheme, a rule has one port, and that scheme is spoken there.
fn scheme_ports(scheme: Option<Scheme>, ports: Ports) -> Result<Ports, String> {
    let Some(scheme) = scheme else { return Ok(ports) };
    match (scheme, ports) {
        (_, Ports::Unnamed) => Ok(Ports::one(scheme.port())),
        (Scheme::Https, Ports::Between(80, 80)) => Err("port 80 is always plain http: write http://".to_owned()),
        (Scheme::Http, Ports::Between(443, 443)) => Err("port 443 is always TLS: write https://".to_owned()),
        (_, Ports::Between(low, high)) if low == high => Ok(ports),
        (_, Ports::Between(..) | Ports::All) => Err(ONE_PORT.to_owned()),
    }
}

const ONE_PORT: &str = "with https:// or http:// it can have one port: leave the scheme out to name several";

/// The host at the beginning of a text, and what follows it.
fn host(text: &str) -> Result<(HostPattern, &str), String> {
    if let Some(rest) = text.strip_prefix('[') {
        let (inner, after) = rest.split_once(']').ok_or("a bracket is missing: write [ADDRESS]")?;
        if let Some((address, prefix)) = inner.split_once('/') {
            return Err(format!("write the prefix after the bracket: [{address}]/{prefix}"));
        }
        let host = Host::parse(inner.as_bytes()).map_err(|error| error.to_string())?;
        return match host {
            Host::V6(address) => range(address.into(), after),
            Host::Name(_) | Host::V4(_) => Err("only an IPv6 address stands in brackets".to_owned()),
        };
    }
    let end = text.find([':', '/']).unwrap_or(text.len());
    let (name, after) = text.split_at(end);
    if after.split('/').next().unwrap_or_default().matches(':').count() > 1 {
        return Err("write an IPv6 address in brackets: [2001:db8::1]".to_owned());
    }
    if text.split('/').next().unwrap_or_default().contains('@') {
        return Err("it has an @: leave out user names; a set is written as @name alone".to_owned());
    }
    if name == "*" {
        return Ok((HostPattern::Any, after));
    }
    if let Some(parent) = name.strip_prefix('.') {
        return Err(format!("write *.{parent} for every name below {parent}"));
    }
    if let Some(parent) = name.strip_prefix("*.") {
        let parent = HostName::parse(parent.as_bytes()).map_err(|error| error.to_string())?;
        return Ok((HostPattern::Below(parent), after));
    }
    if name.contains('*') {
        return Err("`*` can only stand alone or before the first dot: write * or *.example.com".to_owned());
    }
    match Host::parse(name.as_bytes()).map_err(|error| error.to_string())? {
        Host::Name(name) => Ok((HostPattern::Exact(name), after)),
        Host::V4(address) => range(address.into(), after),
        Host::V6(_) => Err("write an IPv6 address in brackets: [2001:db8::1]".to_owned()),
    }
}

/// An address, with a prefix length if a number follows directly after a slash.
fn range(address: IpAddr, after: &str) -> Result<(HostPattern, &str), String> {
    let single = Range::single(address);
    let Some(rest) = after.strip_prefix('/') else { return Ok((HostPattern::Range(single), after)) };
    let end = rest.find([':', '/']).unwrap_or(rest.len());
    let (digits, rest) = rest.split_at(end);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok((HostPattern::Range(single), after));
    }
    let unclear = |max: u8| {
        format!("/{digits} is not a prefix length (0 to {max}): write a port before a path, as {single}:443/{digits}")
    };
    // A leading zero would be lost in the canonical text.
    let prefix = digits.parse().ok().filter(|prefix: &u8| prefix.to_string() == digits);
    let prefix = prefix.ok_or_else(|| unclear(if address.is_ipv4() { 32 } else { 128 }))?;
    match Range::new(address, prefix) {
        Ok(range) => Ok((HostPattern::Range(range), rest)),
        Err(RangeError::Prefix { max }) => Err(unclear(max)),
        Err(RangeError::Bits { first }) => {
            let first = Range::single(first);
            Err(format!(
                "bits are set after the prefix: write {first}/{prefix} for the range, or {single} for one address"
            ))
        }
    }
}

fn ports(text: &str) -> Result<(Ports, &str), String> {
    let Some(rest) = text.strip_prefix(':') else { return Ok((Ports::Unnamed, text)) };
    let (ports, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let ports = Ports::parse(ports)
        .ok_or("write a port from 1 to 65535 after the colon, a range as 8000-8999, or * for every port")?;
    Ok((ports, rest))
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Set(name) => write!(f, "@{name}"),
            Kind::Match(rule) => rule.fmt(f),
        }
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.methods.is_every() {
            write!(f, "{} ", self.methods.joined())?;
        }
        f.write_str(match self.scheme {
            None => "",
            Some(Scheme::Http) => "http://",
            Some(Scheme::Https) => "https://",
        })?;
        write!(f, "{}", self.host)?;
        // The port that a scheme implies is left out, except where a path would then read as a prefix length.
        let is_implied = self.scheme.is_some_and(|scheme| self.ports == Ports::one(scheme.port()));
        if !is_implied || (self.host.range().is_some() && self.path.is_some()) {
            write!(f, "{}", self.ports)?;
        }
        match &self.path {
            None => Ok(()),
            Some(path) => path.fmt(f),
        }
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
