//! Ingress: which ports of a sandbox can be reached from outside, and under which name the program inside is addressed.
//!
//! Who may use a port is another question: [`crate::PublicPorts`] need no token, and all others do.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

use crate::problem::{Code, Problem};

/// Maximum number of ports that can be listed.
const PORTS_MAX: usize = 64;
/// Maximum length of a host mask, in bytes.
const MASK_LEN_MAX: usize = 255;
/// Stands for the port's number in a mask.
const PORT: &str = "${PORT}";

/// The ports of a sandbox as the server forwards to them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ingress {
    /// The only ports that can be reached, whoever asks; `None` means every port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow: Option<BTreeSet<NonZeroU16>>,
    /// What the program inside gets as `Host`; `None` means what the client sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostMask>,
}

impl Ingress {
    /// Refuses lists that are too long, and ports that are public and can't be reached.
    pub fn parse(allow: Option<Vec<NonZeroU16>>, host: Option<HostMask>) -> Result<Self, Problem> {
        if allow.as_ref().is_some_and(|ports| ports.len() > PORTS_MAX) {
            return Err(Problem::new(
                Code::InvalidValue,
                format!("more than {PORTS_MAX} ports are listed"),
                "list fewer, or leave the list out to allow every port",
            ));
        }
        Ok(Self { allow: allow.map(BTreeSet::from_iter), host })
    }

    /// Whether the port can be reached at all.
    pub fn allows(&self, port: u16) -> bool {
        self.allow.as_ref().is_none_or(|ports| NonZeroU16::new(port).is_some_and(|port| ports.contains(&port)))
    }
}

/// A host name for the program inside, in which `${PORT}` stands for the port that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostMask(String);

impl HostMask {
    pub fn parse(text: &str) -> Result<Self, Problem> {
        let wrong = |why: &str| {
            Problem::new(
                Code::InvalidValue,
                format!("{text:?} is not a host for the program inside: {why}"),
                "write a name with or without a port, such as localhost:${PORT}",
            )
        };
        if text.is_empty() || text.len() > MASK_LEN_MAX {
            return Err(wrong("it is empty or too long"));
        }
        // The longest port, so that a mask which is a host now is one for every port.
        let example = text.replace(PORT, "65535");
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
        if !example.bytes().all(is_plain) {
            return Err(wrong("it has other characters than letters, digits, `-`, `.`, `_` and a port"));
        }
        let (name, port) = match example.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, Some(port)),
            _ => (example.as_str(), None),
        };
        if port.is_some_and(|port| !port.parse::<u16>().is_ok_and(|port| port > 0)) {
            return Err(wrong("its port is not a number from 1 to 65535"));
        }
        let is_bracketed = name.starts_with('[') && name.ends_with(']');
        if name.is_empty() || (!is_bracketed && name.contains([':', '[', ']'])) {
            return Err(wrong("its name is not one"));
        }
        Ok(Self(text.to_owned()))
    }

    /// The host for a port.
    pub fn for_port(&self, port: u16) -> String {
        self.0.replace(PORT, &port.to_string())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for HostMask {
    type Error = Problem;

    fn try_from(text: String) -> Result<Self, Problem> {
        Self::parse(&text)
    }
}

impl From<HostMask> for String {
    fn from(mask: HostMask) -> Self {
        mask.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_is_a_host_for_every_port() {
        for (mask, host) in [
            ("localhost", "localhost"),
            ("localhost:${PORT}", "localhost:8080"),
            ("app-${PORT}.internal", "app-8080.internal"),
            ("127.0.0.1:3000", "127.0.0.1:3000"),
            ("[::1]:${PORT}", "[::1]:8080"),
            ("[::1]", "[::1]"),
        ] {
            assert_eq!(HostMask::parse(mask).unwrap().for_port(8080), host);
        }
        let long = "a".repeat(MASK_LEN_MAX + 1);
        for wrong in [
            "",
            "a b",
            "a\r\nx: y",
            "a/b",
            "user@a",
            "a:${PORT}0",
            "a:0",
            "a:b",
            ":80",
            "a:1:2",
            "$PORT",
            "${port}",
            &long,
        ] {
            assert!(HostMask::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn without_a_list_every_port_can_be_reached_and_with_one_only_those() {
        assert!(Ingress::default().allows(1) && Ingress::default().allows(65535));
        let some = Ingress::parse(Some([80, 443].into_iter().filter_map(NonZeroU16::new).collect()), None).unwrap();
        assert!(some.allows(80) && some.allows(443) && !some.allows(8080));
        let none = Ingress::parse(Some(Vec::new()), None).unwrap();
        assert!(!none.allows(80));
        let json = r#"{"allow":[80,443]}"#;
        assert_eq!(serde_json::to_string(&some).unwrap(), json);
        assert_eq!(serde_json::from_str::<Ingress>(json).unwrap(), some);
        assert_eq!(serde_json::from_str::<Ingress>("{}").unwrap(), Ingress::default());
        let many = (1..=65).filter_map(NonZeroU16::new).collect();
        assert_eq!(Ingress::parse(Some(many), None).unwrap_err().code, Code::InvalidValue);
    }
}
