//! Settings that runs depend on: the server writes them into the store, and every worker takes them from there.
//!
//! A run may be driven by any process of a data directory, so it must not matter which. A worker that is told otherwise by a flag, the
//! environment or a file does not start. What concerns one process alone (`runs_max`, `log`, …) stays its own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::section::Scope;
use super::{Config, ConfigError, Origin};

/// The version of what is stored.
const VERSION: u32 = 1;

/// Settings as they are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedSettings {
    v: u32,
    /// Raised by every change: whoever has read one knows by it whether there is another.
    pub(crate) revision: u64,
    /// Values, as on the command line.
    values: BTreeMap<String, String>,
}

impl SharedSettings {
    /// Reads them back. `None` for what is no such thing, or of a newer version.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|shared: &Self| shared.v == VERSION)
    }

    /// As they are stored.
    pub(crate) fn encode(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are JSON")
    }
}

impl Config {
    /// What others have to go by. The revision is that of the same settings before, or the one after.
    pub(crate) fn shared_after(&self, before: Option<&SharedSettings>) -> SharedSettings {
        let shared = self.rows().filter(|row| row.scope == Scope::Shared);
        let values: BTreeMap<_, _> = shared.map(|row| (row.name.to_owned(), row.value)).collect();
        let revision = match before {
            Some(before) if before.values == values => before.revision,
            Some(before) => before.revision + 1,
            None => 1,
        };
        SharedSettings { v: VERSION, revision, values }
    }

    /// Takes over what the server goes by; refuses where this process was told something else.
    pub(crate) fn adopt(&mut self, shared: &SharedSettings) -> Result<(), ConfigError> {
        for (name, theirs) in &shared.values {
            let row = self.rows().find(|row| row.name == name).ok_or_else(|| newer(name))?;
            let (ours, origin) = (row.value, self.origin(row.name));
            if !matches!(origin, Origin::Default | Origin::Server) && ours != *theirs {
                return Err(ConfigError::new(
                    format!("{name} ({origin}) is {ours:?} here, and {theirs:?} for the server of this data directory"),
                    format!("leave {name} out: a worker takes it from the server. To change it, restart the server"),
                ));
            }
            self.set_value(name, theirs)
                .map_err(|complaint| ConfigError::new(format!("{name} (the server): {complaint}"), MISMATCH))?;
            self.origins_of_values.insert(row.name, Origin::Server);
        }
        Ok(())
    }
}

const MISMATCH: &str = "start the worker from the same version as the server";

fn newer(name: &str) -> ConfigError {
    ConfigError::new(format!("the server goes by a setting {name:?} that this worker doesn't know"), MISMATCH)
}

#[cfg(test)]
mod tests {
    use super::super::Given;
    use super::*;

    fn config(flags: &[(&str, &str)]) -> Config {
        let flags = flags.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Config::load(Given { data_directory: "/data".into(), flags, ..Given::default() }).unwrap()
    }

    #[test]
    fn a_worker_goes_by_what_the_server_was_told() {
        let told = [("http_allowed", "http://127.0.0.1:1/a"), ("ttl_max", "2h"), ("capacity", "7"), ("runs_max", "3")];
        let server = config(&told);
        let shared = SharedSettings::parse(&server.shared_after(None).encode()).unwrap();
        // The same in another spelling is no contradiction; what is a process's own stays its own.
        let mut worker = config(&[("http_allowed", "HTTP://127.0.0.1:1/a"), ("runs_max", "9")]);
        worker.adopt(&shared).unwrap();
        assert_eq!(
            (&worker.runs.http_allowed, worker.sandboxes.ttl_max, worker.sandboxes.capacity),
            (&server.runs.http_allowed, server.sandboxes.ttl_max, 7)
        );
        assert_eq!((worker.runs.runs_max, worker.origin("capacity").to_string()), (9, "the server".to_owned()));
        assert_eq!(worker.adopt(&shared), Ok(()), "what came from the server may change with it");
    }

    #[test]
    fn a_worker_that_was_told_something_else_is_refused() {
        let shared = config(&[]).shared_after(None);
        for (name, value) in [("http_allowed", "http://127.0.0.1:1"), ("capacity", "3"), ("runs_per_agent", "1")] {
            let error = config(&[(name, value)]).adopt(&shared).unwrap_err();
            assert!(error.what.contains(name) && error.what.contains("flag --"), "{error:?}");
            assert!(error.help.contains("leave"), "{error:?}");
        }
    }

    /// Stored settings hold these names: one more is refused by workers of an earlier version, one fewer would be each worker's own.
    #[test]
    fn the_settings_that_workers_share_are_these() {
        let names: Vec<_> = config(&[]).shared_after(None).values.into_keys().collect();
        let shared = [
            "allow_host_network",
            "capacity",
            "default_ttl",
            "http_allowed",
            "paused_max",
            "retention",
            "runs_per_agent",
            "runs_per_project",
            "ttl_max",
        ];
        assert_eq!(names, shared);
    }

    #[test]
    fn a_change_raises_the_revision_and_nothing_else_does() {
        let first = config(&[]).shared_after(None);
        assert_eq!((first.revision, config(&[("runs_max", "1")]).shared_after(Some(&first))), (1, first.clone()));
        assert_eq!(config(&[("capacity", "1")]).shared_after(Some(&first)).revision, 2);
    }

    #[test]
    fn what_a_newer_server_wrote_is_refused() {
        let mut shared = config(&[]).shared_after(None);
        assert_eq!(SharedSettings::parse(&SharedSettings { v: 2, ..shared.clone() }.encode()), None);
        shared.values.insert("new".to_owned(), "1".to_owned());
        assert!(config(&[]).adopt(&shared).unwrap_err().what.contains("\"new\""));
    }
}
