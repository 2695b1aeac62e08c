//! Limits of connections and requests, and the grace period of a stop.

use std::time::Duration;

use saggar_domain::ByteSize;

use super::ConfigError;
use super::section::{Origins, Setting, Table, complain, setting};

/// Limits of what clients may send and keep open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSettings {
    pub connections_max: usize,
    /// From one address, or one /64 network of IPv6.
    pub connections_per_address: usize,
    /// Concurrent requests and streams of one key.
    pub requests_per_key: usize,
    pub upload_max: ByteSize,
    /// How long requests may continue after a stop was requested.
    pub shutdown_grace: Duration,
    /// Stop after this time without a live sandbox and an unfinished run.
    pub stop_when_idle: Option<Duration>,
}

impl Default for LimitSettings {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            connections_per_address: 768,
            requests_per_key: 512,
            upload_max: ByteSize::mebibytes(4096),
            shutdown_grace: Duration::from_secs(10),
            stop_when_idle: None,
        }
    }
}

impl Table for LimitSettings {
    const SETTINGS: &'static [Setting<Self>] = &[
        setting!(connections_max, Process, "maximum number of connections"),
        setting!(
            connections_per_address,
            Process,
            "maximum number of connections from one address (one /64 of IPv6); three quarters of connections_max if not set"
        ),
        setting!(
            requests_per_key,
            Process,
            "maximum number of concurrent requests and streams per key, or per sandbox token; half of connections_max if not set"
        ),
        setting!(upload_max, Process, "largest upload"),
        setting!(shutdown_grace, Process, "how long requests may continue after a stop was requested"),
        setting!(
            stop_when_idle,
            Process,
            "stop after this time without a sandbox and an unfinished run; never by default"
        ),
    ];

    /// Limits that were not set are fractions of `connections_max`, so that some capacity is left for others.
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
