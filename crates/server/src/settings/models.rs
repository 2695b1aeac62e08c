//! Settings of models: the file that names providers, routes and prices.

use std::path::PathBuf;

use saggar_gateway::Catalogue;
use saggar_gateway::catalogue::CATALOGUE_BYTES_MAX;

use super::ConfigError;
use super::section::{Origins, Setting, Table, setting};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelSettings {
    pub models_file: Option<PathBuf>,
}

impl Table for ModelSettings {
    const SETTINGS: &'static [Setting<Self>] = &[setting!(
        models_file,
        Shared,
        "file with the models' providers, routes, prices and budgets; none without it"
    )];

    /// Workers read the same file, wherever they were started.
    fn derive(&mut self, _origins: &Origins) {
        // What can't be made absolute is reported when it is read.
        self.models_file = self.models_file.take().map(|path| std::path::absolute(&path).unwrap_or(path));
    }

    fn check(&self, _origins: &Origins) -> Result<(), ConfigError> {
        self.catalogue().map(drop)
    }
}

impl ModelSettings {
    /// The file's content; nothing without a file.
    pub(crate) fn catalogue(&self) -> Result<Catalogue, ConfigError> {
        let Some(path) = &self.models_file else { return Ok(Catalogue::default()) };
        let named = path.display();
        let length = std::fs::metadata(path).map_or(0, |about| about.len());
        if length > CATALOGUE_BYTES_MAX as u64 {
            return Err(ConfigError::new(
                format!("models_file {named} is larger than {CATALOGUE_BYTES_MAX} bytes"),
                HELP,
            ));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::new(format!("models_file {named} can't be read: {}", error.kind()), HELP))?;
        Catalogue::parse(&text).map_err(|error| ConfigError::new(format!("models_file {named}: {error}"), HELP))
    }
}

const HELP: &str = "docs/models.md shows such a file";
