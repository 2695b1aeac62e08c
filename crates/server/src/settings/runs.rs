//! Settings of runs: concurrency, allowed URLs of tools, retention.

use std::time::Duration;

use saggar_runtime::runs::HttpRule;

use super::section::{Setting, Table, setting};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunsSettings {
    /// How long a finished run is kept.
    pub runs_retention: Duration,
    /// Where the tool `http` may go.
    pub http_allowed: Vec<HttpRule>,
    /// Maximum number of concurrent runs per worker.
    pub runs_max: usize,
    /// Maximum number of concurrent runs per agent, over all workers.
    pub runs_per_agent: usize,
    /// Maximum number of concurrent runs per project, over all workers.
    pub runs_per_project: usize,
}

impl Default for RunsSettings {
    fn default() -> Self {
        Self {
            runs_retention: Duration::from_secs(30 * 24 * 3600),
            http_allowed: Vec::new(),
            runs_max: 256,
            runs_per_agent: 128,
            runs_per_project: 256,
        }
    }
}

impl Table for RunsSettings {
    const SETTINGS: &'static [Setting<Self>] = &[
        setting!(runs_retention, Process, "how long a finished run and its journal are kept"),
        setting!(
            http_allowed,
            Shared,
            "where the tool `http` of runs may go: URLs with everything below them, and network rules, comma-separated"
        ),
        setting!(runs_max, Process, "maximum number of concurrent runs per worker"),
        setting!(runs_per_agent, Shared, "maximum number of concurrent runs per agent, over all workers"),
        setting!(runs_per_project, Shared, "maximum number of concurrent runs per project, over all workers"),
    ];
}
