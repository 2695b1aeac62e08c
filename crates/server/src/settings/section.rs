//! Sections: groups of settings, each one type in one file, with a row for each setting.
//!
//! A row is a key of the file, an environment variable (`SAGGAR_` and the name in capitals) and a flag. Names don't
//! depend on the section, and are unique over all sections.

use std::collections::BTreeMap;

use super::{ConfigError, Origin};

/// One setting of the section `S`.
pub(super) struct Setting<S> {
    pub(super) name: &'static str,
    /// Description.
    pub(super) what: &'static str,
    pub(super) scope: Scope,
    pub(super) set: fn(&mut S, &str) -> Result<(), String>,
    pub(super) show: fn(&S) -> String,
}

/// The processes that a setting applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// The process that it was given to.
    Process,
    /// The server and all workers of its data directory, which read it from the server.
    Shared,
}

/// A setting with the name of its field, parsed and shown like all settings of the field's type.
macro_rules! setting {
    ($name:ident, $scope:ident, $what:literal) => {
        $crate::settings::section::Setting {
            name: stringify!($name),
            what: $what,
            scope: $crate::settings::section::Scope::$scope,
            set: |section, text| {
                section.$name = $crate::settings::value::Value::read(text)?;
                Ok(())
            },
            show: |section| $crate::settings::value::Value::show(&section.$name),
        }
    };
}

pub(super) use setting;

/// The sources of values, by name; a missing name means the default.
pub(super) type Origins = BTreeMap<&'static str, Origin>;

/// What a section provides.
pub(super) trait Table: Default + 'static {
    const SETTINGS: &'static [Setting<Self>];

    /// Sets values that were not given and depend on other settings.
    fn derive(&mut self, _origins: &Origins) {}

    /// Rejects invalid values.
    fn check(&self, _origins: &Origins) -> Result<(), ConfigError> {
        Ok(())
    }
}

/// A section of any type.
pub(super) trait Section {
    fn rows(&self) -> Vec<Row>;

    /// Sets a value; `None` if the section has no such setting.
    fn set(&mut self, name: &str, text: &str) -> Option<Result<(), String>>;

    fn derive(&mut self, origins: &Origins);

    fn check(&self, origins: &Origins) -> Result<(), ConfigError>;
}

/// A setting with its current value.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) scope: Scope,
    /// In the form of the command line.
    pub(super) value: String,
}

impl<S: Table> Section for S {
    fn rows(&self) -> Vec<Row> {
        let row = |setting: &Setting<S>| Row {
            name: setting.name,
            what: setting.what,
            scope: setting.scope,
            value: (setting.show)(self),
        };
        S::SETTINGS.iter().map(row).collect()
    }

    fn set(&mut self, name: &str, text: &str) -> Option<Result<(), String>> {
        let setting = S::SETTINGS.iter().find(|setting| setting.name == name)?;
        Some((setting.set)(self, text))
    }

    fn derive(&mut self, origins: &Origins) {
        Table::derive(self, origins);
    }

    fn check(&self, origins: &Origins) -> Result<(), ConfigError> {
        Table::check(self, origins)
    }
}

/// Fails with the first complaint that applies.
pub(super) fn complain(complaints: &[(bool, &str, &str)]) -> Result<(), ConfigError> {
    match complaints.iter().find(|(is_wrong, _, _)| *is_wrong) {
        Some((_, what, help)) => Err(ConfigError::new(*what, *help)),
        None => Ok(()),
    }
}
