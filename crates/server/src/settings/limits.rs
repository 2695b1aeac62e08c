//! How much the server takes on at once, and how long it goes on once it is told to stop.

use std::time::Duration;

use saggar_domain::ByteSize;

use super::ConfigError;
use super::section::{Origins, Setting, Table, complain, setting};

/// Limits on what clients send and hold open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSettings {
    pub connections_max: usize,
    /// From one address, or one network of IPv6.
    pub connections_per_address: usize,
    /// Requests and streams that one key has under way.
    pub requests_per_key: usize,
    pub upload_max: ByteSize,
    /// How long requests may go on once the server is told to stop.
    pub shutdown_grace: Duration,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            connections_per_address: 768,
            requests_per_key: 512,
            upload_max: ByteSize::mebibytes(4096),
            shutdown_grace: Duration::from_secs(10),
        }
    }
}

impl Table for LimitSettings {
    const SETTINGS: &'static [Setting<Self>] = &[
        setting!(connections_max, Process, "most connections at once"),
        setting!(
            connections_per_address,
            Process,
            "most connections at once from one address (one /64 of IPv6); three quarters of connections_max if not set"
        ),
        setting!(
            requests_per_key,
            Process,
            "most requests and streams under way for one key, or for one sandbox's token; half of connections_max if not set"
        ),
        setting!(upload_max, Process, "largest upload"),
        setting!(shutdown_grace, Process, "how long requests may go on once the server is told to stop"),
    ];

    /// Limits that were not set are shares of `connections_max`: the rest is for others.
    fn derive(&mut self, origins: &Origins) {
        if !origins.contains_key("connections_per_address") {
            self.connections_per_address = (self.connections_max * 3 / 4).max(1);
        }
        if !origins.contains_key("requests_per_key") {
            self.requests_per_key = (self.connections_max / 2).max(1);
        }
    }

    fn check(&self, _origins: &Origins) -> Result<(), ConfigError> {
        complain(&[
            (self.connections_max == 0, "connections_max is zero", "allow at least one connection"),
            (self.connections_per_address == 0, "connections_per_address is zero", "allow at least one connection"),
            (self.requests_per_key == 0, "requests_per_key is zero", "allow at least one request"),
            (self.upload_max.bytes() == 0, "upload_max is zero", "allow at least some bytes"),
        ])
    }
}
