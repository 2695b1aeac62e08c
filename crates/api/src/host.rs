//! The server's health, and the resource usage of a sandbox.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema;
use crate::time::Timestamp;

/// The server's health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Whether it accepts requests.
    pub status: HealthStatus,
    /// The server's version.
    pub version: String,
}

/// Whether a server accepts requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// It accepts requests.
    Ok,
    /// It is starting: live sandboxes are being adopted.
    Starting,
    /// It is stopping.
    Stopping,
}

/// A sandbox's resource usage, now and over the last half hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Metrics {
    /// The current usage.
    pub now: Sample,
    /// Earlier samples, oldest first, at even intervals.
    pub samples: Vec<Sample>,
    /// The interval in milliseconds.
    pub interval_ms: u64,
}

/// A sandbox's resource usage at one moment; null for values that the host can't measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sample {
    /// When it was measured.
    #[schema(value_type = schema::Instant)]
    pub at: Timestamp,
    /// CPU time since its start, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// Memory of the whole process tree, private storage included.
    pub memory_bytes: Option<u64>,
    /// The peak of the memory.
    #[serde(default)]
    pub memory_peak_bytes: Option<u64>,
    /// Number of processes and threads.
    pub processes: Option<u64>,
    /// Used part of the sandbox's own storage.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
}
