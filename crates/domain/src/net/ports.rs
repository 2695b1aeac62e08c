//! The ports of a rule.

use std::fmt;

use crate::net::authority::parse_port;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Ports {
    /// None was written: 80 and 443 in an allow rule, all in a deny rule.
    Unnamed,
    Between(u16, u16),
    All,
}

impl Ports {
    pub(super) fn one(port: u16) -> Self {
        Self::Between(port, port)
    }

    /// What follows the colon of a rule.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self::All);
        }
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let (low, high) = (parse_port(low.as_bytes()).ok()?, parse_port(high.as_bytes()).ok()?);
        (low <= high).then_some(Self::Between(low, high))
    }

    /// Whether a port was written that includes this one.
    pub(super) fn names(self, port: u16) -> bool {
        match self {
            Self::Unnamed => false,
            Self::Between(low, high) => (low..=high).contains(&port),
            Self::All => port != 0,
        }
    }

    pub(super) fn allows(self, port: u16) -> bool {
        self.names(port) || (self == Self::Unnamed && matches!(port, 80 | 443))
    }

    /// Whether a deny rule with these ports denies all of them.
    pub(super) fn is_every(self) -> bool {
        matches!(self, Self::Unnamed | Self::All | Self::Between(1, u16::MAX))
    }

    pub(super) fn denies(self, port: u16) -> bool {
        self.names(port) || self.is_every()
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unnamed => Ok(()),
            Self::Between(low, high) if low == high => write!(f, ":{low}"),
            Self::Between(low, high) => write!(f, ":{low}-{high}"),
            Self::All => f.write_str(":*"),
        }
    }
}
