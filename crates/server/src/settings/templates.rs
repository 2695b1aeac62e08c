//! Settings of templates: what projects may import, and how much at once.

use saggar_domain::ByteSize;
use saggar_runtime::RegistryRule;

use super::ConfigError;
use super::section::{Origins, Setting, Table, complain, setting};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateSettings {
    /// Registries that projects may import images from.
    pub import_registries: Vec<RegistryRule>,
    /// The largest image that a project may import, uncompressed.
    pub import_size_max: ByteSize,
    /// Template jobs of a project at once.
    pub template_jobs_per_project: usize,
}

impl Default for TemplateSettings {
    fn default() -> Self {
        Self {
            import_registries: Vec::new(),
            import_size_max: ByteSize::from_bytes(8 << 30),
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
