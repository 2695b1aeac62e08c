//! What E2B's clients get.

use saggar_domain::NetworkMode;

use super::section::{Setting, Table, setting};
use super::value::choice;

/// What E2B's clients get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct E2bSettings {
    pub e2b_network: E2bNetwork,
}

choice!(
    /// How sandboxes of E2B's clients, which expect the whole internet, reach the network.
    E2bNetwork {
        /// Not at all.
        None = "none",
        /// As the host does, unmanaged.
        Host = "host",
    }
);

impl E2bNetwork {
    pub(crate) fn mode(self) -> NetworkMode {
        match self {
            Self::None => NetworkMode::None,
            Self::Host => NetworkMode::Host,
        }
    }
}

impl Default for E2bSettings {
    fn default() -> Self {
        Self { e2b_network: E2bNetwork::None }
    }
}

impl Table for E2bSettings {
    const SETTINGS: &'static [Setting<Self>] = &[setting!(
        e2b_network,
        Process,
        "how sandboxes made by E2B's clients reach the network: none, host (needs allow_host_network)"
    )];
}
