//! The effective settings with their sources, as text and as JSON. No setting contains a secret; the files they name
//! do.

use serde::Serialize;

use super::Config;

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
        self.rows()
            .map(|row| Shown {
                name: row.name,
                from: self.origin(row.name).to_string(),
                value: row.value,
                what: row.what,
            })
            .collect()
    }
}
