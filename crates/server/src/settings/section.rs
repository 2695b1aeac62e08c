//! Sections: settings that belong together, as one type in one file, with a row for each.
//!
//! A row is a key of the file, a variable of the environment (`SAGGAR_` and the name in capitals) and a flag. Names are the same
//! whatever section they are in, and no two sections have the same one.

use std::collections::BTreeMap;

use super::{ConfigError, Origin};

/// One setting of the section `S`.
pub(super) struct Setting<S> {
    pub(super) name: &'static str,
    /// What it decides.
    pub(super) what: &'static str,
    pub(super) scope: Scope,
    pub(super) set: fn(&mut S, &str) -> Result<(), String>,
    pub(super) show: fn(&S) -> String,
}

/// Whom a setting is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// For the process that was told.
    Process,
    /// For the server and all workers of its data directory, which take it from the server.
    Shared,
}

/// A setting whose name is that of the field it is kept in, read and shown as all of the field's type are.
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

/// Where values came from, by name; what is not in it is a default.
pub(super) type Origins = BTreeMap<&'static str, Origin>;

/// What a section says of itself.
pub(super) trait Table: Default + 'static {
    const SETTINGS: &'static [Setting<Self>];

    /// Sets what nobody set and what follows from other settings.
    fn derive(&mut self, _origins: &Origins) {}

    /// Refuses what can't be meant.
    fn check(&self, _origins: &Origins) -> Result<(), ConfigError> {
        Ok(())
    }
}

/// A section of any type.
pub(super) trait Section {
    fn rows(&self) -> Vec<Row>;

    /// Sets a value; `None` when the section has no such setting.
    fn set(&mut self, name: &str, text: &str) -> Option<Result<(), String>>;

    fn derive(&mut self, origins: &Origins);

    fn check(&self, origins: &Origins) -> Result<(), ConfigError>;
}

/// One setting and the value that it has.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) what: &'static str,
    pub(super) scope: Scope,
    /// As it would be on the command line.
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

/// Refuses with the first complaint that holds.
pub(super) fn complain(complaints: &[(bool, &str, &str)]) -> Result<(), ConfigError> {
    match complaints.iter().find(|(is_wrong, _, _)| *is_wrong) {
        Some((_, what, help)) => Err(ConfigError::new(*what, *help)),
        None => Ok(()),
    }
}
