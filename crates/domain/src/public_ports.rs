//! Ports of a sandbox that need neither key nor token: every client that reaches the server may use them.

use std::collections::BTreeSet;
use std::num::NonZeroU16;

use serde::{Deserialize, Serialize};

/// The public ports. In JSON this is a list, or the word `"all"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum PublicPorts {
    These(BTreeSet<NonZeroU16>),
    /// Every port: anyone who knows the sandbox's unguessable id may connect to its listeners.
    Every(All),
}

/// The word `"all"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum All {
    All,
}

impl Default for PublicPorts {
    fn default() -> Self {
        Self::These(BTreeSet::new())
    }
}

impl PublicPorts {
    pub const ALL: Self = Self::Every(All::All);

    /// Whether this port is public.
    pub fn contains(&self, port: u16) -> bool {
        match self {
            Self::These(ports) => NonZeroU16::new(port).is_some_and(|port| ports.contains(&port)),
            Self::Every(All::All) => port > 0,
        }
    }

    /// The ports listed individually.
    pub fn named(&self) -> impl Iterator<Item = u16> {
        let named = match self {
            Self::These(ports) => Some(ports),
            Self::Every(All::All) => None,
        };
        named.into_iter().flatten().map(|port| port.get())
    }

    pub fn is_every(&self) -> bool {
        matches!(self, Self::Every(All::All))
    }
}

impl FromIterator<NonZeroU16> for PublicPorts {
    fn from_iter<I: IntoIterator<Item = NonZeroU16>>(ports: I) -> Self {
        Self::These(ports.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_and_a_word_read_back() {
        let some: PublicPorts = [80, 443].into_iter().filter_map(NonZeroU16::new).collect();
        for (ports, json) in [(PublicPorts::default(), "[]"), (some.clone(), "[80,443]"), (PublicPorts::ALL, "\"all\"")]
        {
            assert_eq!(serde_json::to_string(&ports).unwrap(), json);
            assert_eq!(serde_json::from_str::<PublicPorts>(json).unwrap(), ports);
        }
        assert!(serde_json::from_str::<PublicPorts>("\"some\"").is_err());
        assert!(
            some.contains(80) && !some.contains(81) && PublicPorts::ALL.contains(81) && !PublicPorts::ALL.contains(0)
        );
    }
}
