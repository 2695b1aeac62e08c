//! The host of a rule: a name, all names below one, every host, or a range of addresses.

use std::fmt;

use crate::net::address::Range;
use crate::net::host::{Host, HostName};

/// Last labels of names that no public resolver answers. `*` doesn't include them.
const INTERNAL: &[&str] =
    &["corp", "home", "internal", "intranet", "lan", "local", "localdomain", "localhost", "onion", "private"];

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum HostPattern {
    /// `*`
    Any,
    Exact(HostName),
    /// `*.name`: any depth below, not the name itself.
    Below(HostName),
    Range(Range),
}

impl HostPattern {
    /// `*` matches public names and all addresses; special addresses are decided separately.
    pub(super) fn allows(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Any, Host::Name(name)) => !is_internal(name),
            (Self::Any, Host::V4(_) | Host::V6(_)) => true,
            (Self::Exact(own), Host::Name(name)) => own == name,
            (Self::Below(parent), Host::Name(name)) => name.is_below(parent),
            (Self::Range(range), host) => host.address().is_some_and(|address| range.contains(address)),
            (Self::Exact(_) | Self::Below(_), Host::V4(_) | Host::V6(_)) => false,
        }
    }

    /// Matches more than [`Self::allows`]: `*` includes internal names.
    pub(super) fn denies(&self, host: &Host) -> bool {
        *self == Self::Any || self.allows(host)
    }

    /// Whether some host matches both, as names go. An address in a range is no name.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Range(_), _) | (_, Self::Range(_)) => false,
            (Self::Exact(name), host) | (host, Self::Exact(name)) => host.allows(&Host::Name(name.clone())),
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::Below(one), Self::Below(another)) => {
                one == another || one.is_below(another) || another.is_below(one)
            }
        }
    }

    pub(super) fn range(&self) -> Option<Range> {
        match self {
            Self::Range(range) => Some(*range),
            Self::Any | Self::Exact(_) | Self::Below(_) => None,
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("*"),
            Self::Exact(name) => name.fmt(f),
            Self::Below(name) => write!(f, "*.{name}"),
            Self::Range(range) => range.fmt(f),
        }
    }
}

/// Whether a name can only be of this host or its network: a single label, or below a label that is reserved or customary for
/// that.
pub(super) fn is_internal(name: &HostName) -> bool {
    match name.as_str().rsplit_once('.') {
        None => true,
        Some((front, last)) => {
            INTERNAL.contains(&last) || (last == "arpa" && (front == "home" || front.ends_with(".home")))
        }
    }
}
