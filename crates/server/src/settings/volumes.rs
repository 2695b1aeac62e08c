//! Settings of volumes: how much of the disk they may take.

use saggar_domain::ByteSize;

use super::ConfigError;
use super::section::{Origins, Setting, Table, complain, setting};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSettings {
    /// Maximum number of volumes in a project.
    pub volumes_max: usize,
    /// Maximum size of a project's volumes together. Without it, there are no volumes.
    pub volumes_bytes_max: Option<ByteSize>,
    /// The size of a volume if the request sets none.
    pub volume_size: ByteSize,
}

impl Default for VolumeSettings {
    fn default() -> Self {
        Self { volumes_max: 16, volumes_bytes_max: None, volume_size: ByteSize::mebibytes(1024) }
    }
}

impl Table for VolumeSettings {
    const SETTINGS: &'static [Setting<Self>] = &[
        setting!(volumes_max, Process, "maximum number of volumes in a project"),
        setting!(
            volumes_bytes_max,
            Process,
            "maximum size of a project's volumes together, taken from the disk as they are made; by default projects can make none"
        ),
        setting!(volume_size, Process, "size of a volume if the request sets none"),
    ];

    fn check(&self, _origins: &Origins) -> Result<(), ConfigError> {
        complain(&[(
            self.volume_size < ByteSize::mebibytes(16),
            "volume_size is below 16M, the smallest volume",
            "set it to 16M or more",
        )])
    }
}
