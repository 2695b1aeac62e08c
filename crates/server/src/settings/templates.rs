//! Settings of templates: what projects may import, and how much at once.

use std::time::Duration;

use saggar_domain::net::Rule;
use saggar_domain::{ByteSize, Cpus};
use saggar_runtime::RegistryRule;

use super::ConfigError;
use super::section::{Origins, Setting, Table, complain, setting};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateSettings {
    /// Registries that projects may import images from.
    pub import_registries: Vec<RegistryRule>,
    /// The largest image that a project may import, uncompressed.
    pub import_size_max: ByteSize,
    /// Where the steps of builds may connect to.
    pub build_network: Vec<Rule>,
    pub build_memory: ByteSize,
    pub build_cpus: Cpus,
    pub build_disk: ByteSize,
    pub build_timeout: Duration,
    /// Template jobs of a project at once.
    pub template_jobs_per_project: usize,
}

impl Default for TemplateSettings {
    fn default() -> Self {
        Self {
            import_registries: Vec::new(),
            import_size_max: ByteSize::from_bytes(8 << 30),
            build_network: Vec::new(),
            build_memory: ByteSize::from_bytes(2 << 30),
            build_cpus: Cpus::millis(2000),
            build_disk: ByteSize::from_bytes(4 << 30),
            build_timeout: Duration::from_secs(30 * 60),
            template_jobs_per_project: 2,
        }
    }
}

impl Table for TemplateSettings {
    const SETTINGS: &'static [Setting<Self>] = &[
        setting!(
            import_registries,
            Process,
            "registries that projects may import images from, such as ghcr.io or @docker; by default none"
        ),
        setting!(import_size_max, Process, "the largest image that a project may import, uncompressed"),
        setting!(
            build_network,
            Process,
            "network rules of builds, such as @pypi or @debian; by default they have no network"
        ),
        setting!(build_memory, Process, "memory of each step of a build"),
        setting!(build_cpus, Process, "CPUs of each step of a build"),
        setting!(build_disk, Process, "files that each step of a build may write"),
        setting!(build_timeout, Process, "how long a build may take"),
        setting!(template_jobs_per_project, Process, "imports and builds of a project at once"),
    ];

    fn check(&self, _origins: &Origins) -> Result<(), ConfigError> {
        complain(&[(
            self.import_size_max.bytes() == 0,
            "import_size_max is zero: no image could be imported",
            "set a size, such as 8G",
        )])
    }
}
