//! Runs: how many are driven at once, where their tools may go, how long they are remembered.

use std::time::Duration;

use saggar_runtime::runs::HttpAddress;

use super::section::{Setting, Table, setting};

/// What holds for every run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunsSettings {
    /// How long a run that is over is kept.
    pub runs_retention: Duration,
    /// Where the tool `http` may go.
    pub http_allowed: Vec<HttpAddress>,
    /// Most that one worker drives at once.
    pub runs_max: usize,
    /// Most of one agent's that are driven at once, by all workers together.
    pub runs_per_agent: usize,
    /// Most of one project's.
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
        setting!(runs_retention, Process, "how long a run that is over is kept, with its journal"),
        setting!(
            http_allowed,
            Shared,
            "where the tool `http` of runs may go: addresses that begin with http://, commas between, each with all below it"
        ),
        setting!(runs_max, Process, "most runs that one worker drives at once"),
        setting!(runs_per_agent, Shared, "most runs of one agent that are driven at once, by all workers together"),
        setting!(runs_per_project, Shared, "most runs of one project that are driven at once, by all workers together"),
    ];
}
