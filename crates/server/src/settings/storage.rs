//! The data directory, and the file with the keys of what is sealed in it.

use std::path::PathBuf;

use super::ConfigError;
use super::section::{Origins, Setting, Table, complain, setting};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageSettings {
    pub data_dir: PathBuf,
    /// Empty if there is no default here: then secrets can't be stored until it is set.
    pub secrets_key_file: PathBuf,
}

impl Table for StorageSettings {
    const SETTINGS: &'static [Setting<Self>] = &[
        setting!(data_dir, Process, "data directory"),
        setting!(
            secrets_key_file,
            Process,
            "file with the keys that seal secrets, outside of the data directory; made when it is first needed"
        ),
    ];

    /// Links are followed when the file is used. A default place that doesn't fit matters only then, too.
    fn check(&self, origins: &Origins) -> Result<(), ConfigError> {
        let is_given = origins.contains_key("secrets_key_file");
        complain(&[(
            is_given && self.secrets_key_file.starts_with(&self.data_dir),
            "secrets_key_file is inside the data directory",
            "set it to a path elsewhere, so that a copy of the data directory doesn't contain the keys",
        )])
    }
}
