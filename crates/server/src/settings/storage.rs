//! Where everything is kept.

use std::path::PathBuf;

use super::section::{Setting, Table, setting};

/// The data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageSettings {
    pub data_dir: PathBuf,
}

impl Table for StorageSettings {
    const SETTINGS: &'static [Setting<Self>] = &[setting!(data_dir, Process, "where everything is kept")];
}
