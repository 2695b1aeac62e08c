//! What is told of the server itself and of what a sandbox uses.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::schema;
use crate::time::Timestamp;

/// The server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// Whether it takes requests.
    pub status: HealthStatus,
    /// Its version.
    pub version: String,
}

/// Whether a server takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// It does.
    Ok,
    /// It is starting: living sandboxes are being taken over.
    Starting,
    /// It is going down.
    Stopping,
}

/// What a sandbox uses, now and over the last half hour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Metrics {
    /// Now.
    pub now: Sample,
    /// Before, oldest first, at even intervals.
    pub samples: Vec<Sample>,
    /// The interval.
    pub interval_ms: u64,
}

/// What a sandbox uses at one moment; null where the host can't tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Sample {
    /// When.
    #[schema(value_type = schema::Instant)]
    pub at: Timestamp,
    /// CPU time since it started.
    pub cpu_ms: Option<u64>,
    /// Memory of the whole tree, its private storage included.
    pub memory_bytes: Option<u64>,
    /// The most there was at once.
    #[serde(default)]
    pub memory_peak_bytes: Option<u64>,
    /// Processes and threads.
    pub processes: Option<u64>,
    /// Storage it uses of what it owns.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
}
