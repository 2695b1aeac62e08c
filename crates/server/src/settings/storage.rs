//! The data directory.

use std::path::PathBuf;

use super::section::{Setting, Table, setting};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageSettings {
    pub data_dir: PathBuf,
}

impl Table for StorageSettings {
    const SETTINGS: &'static [Setting<Self>] = &[setting!(data_dir, Process, "data directory")];
}
