//! What an operator decides about sandboxes.

use std::path::PathBuf;
use std::time::Duration;

use crate::sandboxes::PoolSize;

/// What an operator decides.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where everything is kept.
    pub data_directory: PathBuf,
    /// The binary that supervisors are started from: this one.
    pub program: PathBuf,
    /// Most sandboxes at once, those kept ready included.
    pub capacity: usize,
    /// How many are kept ready.
    pub pool: PoolSize,
    /// How long a sandbox lives if nothing else is asked for.
    pub default_ttl: Duration,
    /// The longest that can be asked for.
    pub ttl_max: Duration,
    /// Whether a sandbox may share the host's network.
    pub allow_host_network: bool,
    /// How long what is known of an ended sandbox is kept.
    pub retention: Duration,
    /// How long a run that is over is kept.
    pub runs_retention: Duration,
    /// How long a paused sandbox is kept.
    pub paused_max: Duration,
}
