//! Sandboxes: how many, how long they live, how long they are remembered.

use std::time::Duration;

use super::ConfigError;
use super::section::{Origins, Setting, Table, complain, setting};

/// What holds for every sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxSettings {
    /// Most at once.
    pub capacity: usize,
    /// Fewest kept ready.
    pub pool_min: usize,
    /// Most kept ready.
    pub pool_max: usize,
    pub default_ttl: Duration,
    pub ttl_max: Duration,
    /// How long a paused one is kept.
    pub paused_max: Duration,
    /// How long what is known of an ended one is kept.
    pub retention: Duration,
    pub allow_host_network: bool,
}

impl Default for SandboxSettings {
    fn default() -> Self {
        Self {
            capacity: 1000,
            pool_min: 0,
            pool_max: 8,
            default_ttl: Duration::from_secs(5 * 60),
            ttl_max: Duration::from_secs(24 * 3600),
            paused_max: Duration::from_secs(7 * 24 * 3600),
            retention: Duration::from_secs(7 * 24 * 3600),
            allow_host_network: false,
        }
    }
}

impl Table for SandboxSettings {
    const SETTINGS: &'static [Setting<Self>] = &[
        setting!(capacity, Shared, "most sandboxes at once, those kept ready included"),
        setting!(pool_min, Process, "fewest sandboxes kept ready"),
        setting!(pool_max, Process, "most sandboxes kept ready; as many as were asked for lately, up to this"),
        setting!(default_ttl, Shared, "how long a sandbox lives if nothing else is asked for"),
        setting!(ttl_max, Shared, "the longest that can be asked for"),
        setting!(paused_max, Shared, "how long a paused sandbox is kept"),
        setting!(retention, Shared, "how long what is known of an ended sandbox is kept"),
        setting!(allow_host_network, Shared, "whether a sandbox may share the host's network, unmanaged"),
    ];

    fn check(&self, origins: &Origins) -> Result<(), ConfigError> {
        complain(&[
            (self.pool_min > self.pool_max, "pool_min is above pool_max", "lower pool_min or raise pool_max"),
            (
                // A default was not asked for, so it gives way.
                self.pool_max > self.capacity && origins.contains_key("pool_max"),
                "pool_max is above capacity",
                "lower pool_max or raise capacity",
            ),
            (self.default_ttl > self.ttl_max, "default_ttl is above ttl_max", "lower default_ttl or raise ttl_max"),
            (self.default_ttl.is_zero(), "default_ttl is zero", "give sandboxes time to live, such as 5m"),
        ])
    }
}
