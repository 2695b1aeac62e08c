//! The effective settings with their sources, as text and as JSON. No setting contains a secret; the files they name
//! do.

use serde::Serialize;

use super::Config;
use super::setting::SETTINGS;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    pub name: &'static str,
    pub value: String,
    /// The source of the value.
    pub from: String,
    pub what: &'static str,
}

impl Config {
    /// In the order of the table.
    pub fn shown(&self) -> Vec<Shown> {
        SETTINGS
            .iter()
            .map(|setting| Shown {
                name: setting.name,
                value: (setting.show)(self),
                from: self.origin(setting.name).to_string(),
                what: setting.what,
            })
            .collect()
    }
}
