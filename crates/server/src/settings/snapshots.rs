//! Settings of snapshots: how much of the disk they may take.

use saggar_domain::ByteSize;

use super::ConfigError;
use super::section::{Origins, Setting, Table, complain, setting};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSettings {
    /// Maximum number of snapshots in a project.
    pub snapshots_max: usize,
    /// The most that one snapshot may add to what its sandbox was started from.
    pub snapshot_size_max: ByteSize,
}

impl Default for SnapshotSettings {
    fn default() -> Self {
        Self { snapshots_max: 1000, snapshot_size_max: ByteSize::mebibytes(16 << 10) }
    }
}

impl Table for SnapshotSettings {
    const SETTINGS: &'static [Setting<Self>] = &[
        setting!(snapshots_max, Shared, "maximum number of snapshots in a project"),
        setting!(snapshot_size_max, Shared, "the most that one snapshot may add to what its sandbox was started from"),
    ];

    fn check(&self, _origins: &Origins) -> Result<(), ConfigError> {
        complain(&[(
            self.snapshot_size_max < ByteSize::mebibytes(1),
            "snapshot_size_max is below 1M: not even the directories of a sandbox fit",
            "set it to 1M or more",
        )])
    }
}
