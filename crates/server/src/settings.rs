//! What an operator decides about the server: from a file, the environment and flags, later ones before earlier ones.
//!
//! Settings come in sections, one type in one file each; a new section is its file and a line in the table below. Every value knows where
//! it came from. A value that can't be read is refused with its name and its place, and unsafe settings stop startup. Nothing here touches
//! a socket; a section may look at the files it names.

mod e2b;
mod limits;
mod listen;
mod load;
mod log;
mod runs;
mod sandboxes;
mod section;
mod shared;
mod show;
mod storage;
mod value;

use std::path::{Path, PathBuf};

use section::{Origins, Section};

pub use e2b::{E2bNetwork, E2bSettings};
pub use limits::LimitSettings;
pub use listen::{Auth, ListenSettings, WebOrigin};
pub use load::{ConfigError, Given, names};
pub use log::{LogFormat, LogLevel, LogSettings};
pub use runs::RunsSettings;
pub use sandboxes::SandboxSettings;
pub(crate) use shared::SharedSettings;
pub use show::Shown;
pub use storage::StorageSettings;

macro_rules! sections {
    ($($name:ident: $section:ty,)+) => {
        /// What an operator decided.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Config {
            $(pub $name: $section,)+
            /// Variables of the environment that look like settings and were set by Kubernetes for a Service.
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
    runs: RunsSettings,
    e2b: E2bSettings,
    limits: LimitSettings,
    log: LogSettings,
}

impl Config {
    /// The defaults.
    pub fn default_in(data_directory: PathBuf) -> Self {
        Self { storage: StorageSettings { data_dir: data_directory }, ..Self::default() }
    }

    pub fn data_directory(&self) -> &Path {
        &self.storage.data_dir
    }

    fn derive(&mut self) {
        let origins = self.origins_of_values.clone();
        self.sections_mut().into_iter().for_each(|section| section.derive(&origins));
    }

    /// Refuses unsafe settings: those of a section, and those of several together.
    fn check(&self) -> Result<(), ConfigError> {
        for section in self.sections() {
            section.check(&self.origins_of_values)?;
        }
        if self.e2b.e2b_network == E2bNetwork::Host && !self.sandboxes.allow_host_network {
            return Err(ConfigError::new(
                "e2b_network is host and allow_host_network is not set: no sandbox could be made",
                "set allow_host_network = true if sandboxes may share the host's network, or e2b_network = \"none\"",
            ));
        }
        Ok(())
    }

    /// Where a value came from.
    fn origin(&self, name: &str) -> Origin {
        self.origins_of_values.get(name).cloned().unwrap_or(Origin::Default)
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was not set.
    Default,
    /// A file, as it was named.
    File(String),
    /// A variable of the environment.
    Environment(String),
    /// The command line.
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
        assert!(check(|config| config.e2b.e2b_network = E2bNetwork::Host).unwrap().contains("allow_host_network"));
        assert!(check(|config| config.sandboxes.pool_min = 9).unwrap().contains("pool_min"));
        assert!(check(|config| config.limits.connections_max = 0).unwrap().contains("connections_max"));
    }
}
