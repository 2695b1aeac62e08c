//! Settings of sandboxes: number, lifetime, retention.

use std::time::Duration;

use saggar_domain::{ByteSize, TemplateName};
use saggar_runtime::ModuleName;

use super::ConfigError;
use super::section::{Origins, Setting, Table, complain, setting};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxSettings {
    /// Maximum number of sandboxes.
    pub capacity: usize,
    /// Minimum size of the pool.
    pub pool_min: usize,
    /// Maximum size of the pool.
    pub pool_max: usize,
    pub default_ttl: Duration,
    pub ttl_max: Duration,
    /// How long a paused sandbox is kept.
    pub paused_max: Duration,
    /// How long the record of an ended sandbox is kept.
    pub retention: Duration,
    pub allow_host_network: bool,
    /// The operator's templates that every project may use.
    pub public_templates: Vec<TemplateName>,
    /// What the Python of the built-in template has imported when a code context is started.
    pub warm_imports: Vec<ModuleName>,
    /// The largest storage on disk that a sandbox may ask for. Without it, none.
    pub disk_storage_max: Option<ByteSize>,
    /// Bytes that a sandbox with a managed network may send and receive.
    pub egress_bytes_max: Option<ByteSize>,
    /// Connections that it may have at once.
    pub egress_connections_max: usize,
    /// Requests that it may make in a minute.
    pub egress_requests_per_minute_max: Option<usize>,
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
            public_templates: Vec::new(),
            warm_imports: Vec::new(),
            disk_storage_max: None,
            egress_bytes_max: None,
            egress_connections_max: 1024,
            egress_requests_per_minute_max: None,
        }
    }
}

impl Table for SandboxSettings {
    const SETTINGS: &'static [Setting<Self>] = &[
        setting!(capacity, Shared, "maximum number of sandboxes, including the pool"),
        setting!(pool_min, Process, "minimum size of the pool of ready sandboxes"),
        setting!(pool_max, Process, "maximum size of the pool; it follows recent demand up to this"),
        setting!(default_ttl, Shared, "lifetime of a sandbox if the request sets none"),
        setting!(ttl_max, Shared, "longest lifetime that can be requested"),
        setting!(paused_max, Shared, "how long a paused sandbox is kept"),
        setting!(retention, Shared, "how long the record of an ended sandbox is kept"),
        setting!(allow_host_network, Shared, "allow sandboxes to share the host's network, unmanaged"),
        setting!(public_templates, Process, "templates of the operator that every project may use"),
        setting!(
            warm_imports,
            Process,
            "modules that Python has imported when a code context of the built-in template is started; by default none"
        ),
        setting!(
            disk_storage_max,
            Shared,
            "the largest storage on disk that a sandbox may ask for; by default sandboxes keep their files in memory"
        ),
        setting!(
            egress_bytes_max,
            Shared,
            "bytes that a sandbox with a managed network may send and receive; by default unlimited"
        ),
        setting!(egress_connections_max, Shared, "connections at once of a sandbox with a managed network"),
        setting!(
            egress_requests_per_minute_max,
            Shared,
            "requests in a minute of a sandbox with a managed network; by default unlimited"
        ),
    ];

    fn check(&self, origins: &Origins) -> Result<(), ConfigError> {
        complain(&[
            (self.pool_min > self.pool_max, "pool_min is above pool_max", "lower pool_min or raise pool_max"),
            (
                // The default was not requested, so it gives way.
                self.pool_max > self.capacity && origins.contains_key("pool_max"),
                "pool_max is above capacity",
                "lower pool_max or raise capacity",
            ),
            (self.default_ttl > self.ttl_max, "default_ttl is above ttl_max", "lower default_ttl or raise ttl_max"),
            (self.default_ttl.is_zero(), "default_ttl is zero", "set a lifetime, such as 5m"),
            (
                self.egress_connections_max < 2
                    || self.egress_bytes_max.is_some_and(|most| most.bytes() == 0)
                    || self.egress_requests_per_minute_max == Some(0),
                "a maximum of the managed network is too small: no sandbox could use it",
                "set egress_connections_max to 2 or more, egress_bytes_max and egress_requests_per_minute_max to 1 or more",
            ),
        ])
    }
}
