//! What holds, and where it came from, for people and for programs. No setting holds a secret; the files they name do.

use serde::Serialize;

use super::Config;

/// One value as it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    pub name: &'static str,
    pub value: String,
    /// Where it came from.
    pub from: String,
    /// What it decides.
    pub what: &'static str,
}

impl Config {
    /// Every value, in the order of the table.
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
