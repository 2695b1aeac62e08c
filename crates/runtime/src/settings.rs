//! The operator's settings for sandboxes.

use std::path::PathBuf;
use std::time::Duration;

use saggar_domain::net::{EgressMaxima, Rule};
use saggar_domain::{ByteSize, Cpus, TemplateName};

use crate::code::ModuleName;
use crate::sandboxes::{PoolSize, Workspaces};
use crate::snapshots::SnapshotLimits;
use crate::templates::RegistryRule;
use crate::volumes::VolumeLimits;

#[derive(Clone, Debug)]
pub struct Settings {
    pub data_directory: PathBuf,
    /// The file with the keys that secrets are sealed with.
    pub secrets_key_file: PathBuf,
    /// The binary that supervisors are started from: this one.
    pub program: PathBuf,
    /// Maximum number of sandboxes, including the pool.
    pub capacity: usize,
    pub pool: PoolSize,
    /// Lifetime of a sandbox if the request sets none.
    pub default_ttl: Duration,
    /// The longest lifetime that can be requested.
    pub ttl_max: Duration,
    /// Whether a sandbox may share the host's network.
    pub allow_host_network: bool,
    /// The operator's templates that every project may use.
    pub public_templates: Vec<TemplateName>,
    /// Registries that projects may import images from. Without any, none.
    pub import_registries: Vec<RegistryRule>,
    /// The largest image that a project may import, uncompressed.
    pub import_size_max: ByteSize,
    /// Template jobs of a project at once.
    pub template_jobs_per_project: usize,
    /// Where the steps of builds may connect to. Without any, nowhere.
    pub build_network: Vec<Rule>,
    pub build_memory: ByteSize,
    pub build_cpus: Cpus,
    /// Files that one step of a build may write.
    pub build_disk: ByteSize,
    /// How long a build may take.
    pub build_timeout: Duration,
    /// What the Python of the built-in template has imported when a code context is started.
    pub warm_imports: Vec<ModuleName>,
    /// The largest storage on disk that a sandbox may ask for. Without it, none.
    pub disk_storage_max: Option<ByteSize>,
    /// Directories of the host that sandboxes may use.
    pub workspaces: Workspaces,
    /// How much of the disk volumes may take.
    pub volumes: VolumeLimits,
    /// How much of the disk snapshots may take.
    pub snapshots: SnapshotLimits,
    /// How much of a managed network a sandbox may ask for.
    pub egress_maxima: EgressMaxima,
    /// How long the record of an ended sandbox is kept.
    pub retention: Duration,
    /// How long a finished run is kept.
    pub runs_retention: Duration,
    /// How long a paused sandbox is kept.
    pub paused_max: Duration,
}
