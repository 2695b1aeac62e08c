//! The server's settings: from a file, the environment and flags; later sources take precedence.
//!
//! Settings are grouped in sections, one type in one file each; a new section is its file and a line in the table
//! below. Every value knows its source. A malformed value is rejected with its name and source, and unsafe settings
//! stop startup. Nothing here touches a socket; a section may check the files it names.

mod e2b;
mod limits;
mod listen;
mod load;
mod log;
mod models;
mod runs;
mod sandboxes;
mod section;
mod shared;
mod show;
mod snapshots;
mod storage;
mod templates;
mod value;
mod volumes;
mod workspaces;

use std::path::{Path, PathBuf};

use saggar_runtime::KeyFile;
use section::{Origins, Section};

pub use e2b::{E2bNetwork, E2bSettings};
pub use limits::LimitSettings;
pub use listen::{Auth, ListenSettings, WebOrigin};
pub use load::{ConfigError, Given, names};
pub use log::{LogFormat, LogLevel, LogSettings};
pub use models::ModelSettings;
pub(crate) use models::catalogue;
pub use runs::RunsSettings;
pub use sandboxes::SandboxSettings;
pub(crate) use shared::SharedSettings;
pub use show::Shown;
pub use snapshots::SnapshotSettings;
pub use storage::StorageSettings;
pub use templates::TemplateSettings;
pub use volumes::VolumeSettings;
pub use workspaces::WorkspaceSettings;

macro_rules! sections {
    ($($name:ident: $section:ty,)+) => {
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Config {
            $(pub $name: $section,)+
            /// Environment variables that look like settings but were set by Kubernetes for a Service.
            pub ignored_variables: Vec<String>,
            origins_of_values: Origins,
        }

        impl Config {
            fn sections(&self) -> Vec<&dyn Section> {
                vec![$(&self.$name,)+]
            }

            fn sections_mut(&mut self) -> Vec<&mut dyn Section> {
                vec![$(&mut self.$name,)+]
            }
        }
    };
}

sections! {
    listen: ListenSettings,
    storage: StorageSettings,
    sandboxes: SandboxSettings,
    templates: TemplateSettings,
    volumes: VolumeSettings,
    snapshots: SnapshotSettings,
    workspaces: WorkspaceSettings,
    runs: RunsSettings,
    models: ModelSettings,
    e2b: E2bSettings,
    limits: LimitSettings,
    log: LogSettings,
}

impl Config {
    /// The defaults.
    pub fn default_in(data_directory: PathBuf) -> Self {
        Self { storage: StorageSettings { data_dir: data_directory, ..Default::default() }, ..Self::default() }
    }

    pub fn data_directory(&self) -> &Path {
        &self.storage.data_dir
    }

    /// Where the keys are that seal secrets.
    pub fn key_file(&self) -> KeyFile {
        KeyFile::new(self.storage.secrets_key_file.clone(), self.storage.data_dir.clone())
    }

    fn derive(&mut self) {
        let origins = self.origins_of_values.clone();
        self.sections_mut().into_iter().for_each(|section| section.derive(&origins));
    }

    /// Rejects unsafe settings, of one section or of several together.
    fn check(&self) -> Result<(), ConfigError> {
        for section in self.sections() {
            section.check(&self.origins_of_values)?;
        }
        if self.e2b.e2b_network == E2bNetwork::Host && !self.sandboxes.allow_host_network {
            return Err(ConfigError::new(
                "e2b_network is host but allow_host_network is not set: no sandbox could be created",
                "set allow_host_network = true if sandboxes may share the host's network, or e2b_network = \"none\"",
            ));
        }
        Ok(())
    }

    /// The source of a value.
    fn origin(&self, name: &str) -> Origin {
        self.origins_of_values.get(name).cloned().unwrap_or(Origin::Default)
    }
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// The file's name, as given.
    File(String),
    /// The name of an environment variable.
    Environment(String),
    /// A command-line flag.
    Flag(String),
    /// The server of the data directory, for a worker.
    Server,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(name) => write!(f, "file {name}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Server => f.write_str("the server"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_sections_have_a_setting_of_the_same_name() {
        let config = Config::default();
        let names: Vec<_> = config.rows().map(|row| row.name).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let check = |change: fn(&mut Config)| {
            let mut config = Config::default_in("/data".into());
            change(&mut config);
            config.check().err().map(|error| error.what)
        };
        assert_eq!(check(|_| {}), None);
        let inside = |config: &mut Config| {
            config.storage.secrets_key_file = "/data/secrets.key".into();
            config.origins_of_values.insert("secrets_key_file", Origin::Default);
        };
        assert!(check(inside).unwrap().contains("secrets_key_file"));
        assert!(check(|config| config.e2b.e2b_network = E2bNetwork::Host).unwrap().contains("allow_host_network"));
        assert!(check(|config| config.sandboxes.pool_min = 9).unwrap().contains("pool_min"));
        assert!(check(|config| config.limits.connections_max = 0).unwrap().contains("connections_max"));
    }
}
