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
        Process,
        "file with the models' providers, routes, prices and budgets; none without it"
    )];

    fn check(&self, _origins: &Origins) -> Result<(), ConfigError> {
        let Some(path) = &self.models_file else { return Ok(()) };
        let in_file = |error: ConfigError| ConfigError::new(format!("models_file {}: {error}", path.display()), HELP);
        self.text().and_then(|text| catalogue(&text).map_err(in_file)).map(drop)
    }
}

impl ModelSettings {
    /// The file's content; empty without a file.
    pub(crate) fn text(&self) -> Result<String, ConfigError> {
        let Some(path) = &self.models_file else { return Ok(String::new()) };
        let named = path.display();
        let length = std::fs::metadata(path).map_or(0, |about| about.len());
        if length > CATALOGUE_BYTES_MAX as u64 {
            return Err(ConfigError::new(
                format!("models_file {named} is larger than {CATALOGUE_BYTES_MAX} bytes"),
                HELP,
            ));
        }
        std::fs::read_to_string(path)
            .map_err(|error| ConfigError::new(format!("models_file {named} can't be read: {}", error.kind()), HELP))
    }
}

/// What such a text says.
pub(crate) fn catalogue(text: &str) -> Result<Catalogue, ConfigError> {
    Catalogue::parse(text).map_err(|error| ConfigError::new(error.to_string(), HELP))
}

const HELP: &str = "docs/models.md shows such a file";
