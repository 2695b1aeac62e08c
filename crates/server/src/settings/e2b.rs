//! Settings for E2B's clients.

use saggar_domain::NetworkMode;

use super::section::{Setting, Table, setting};
use super::value::choice;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct E2bSettings {
    pub e2b_network: E2bNetwork,
}

choice!(
    /// Network mode of sandboxes created by E2B's clients, which expect full internet access.
    E2bNetwork {
        None = "none",
        /// Managed: everything that is public, and what the client allows or denies.
        Proxied = "proxied",
        /// The host's network, unmanaged.
        Host = "host",
    }
);

impl E2bNetwork {
    pub(crate) fn mode(self) -> NetworkMode {
        match self {
            Self::None => NetworkMode::None,
            Self::Proxied => NetworkMode::Proxied,
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
        "network mode of sandboxes created by E2B's clients: none, proxied, or host (needs allow_host_network)"
    )];
}
