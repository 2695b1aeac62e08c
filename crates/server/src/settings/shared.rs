//! Settings that runs depend on: the server writes them to the store, and every worker reads them from there.
//!
//! Any process of a data directory may execute a run, so they must agree. A worker with a different value from a
//! flag, the environment or a file does not start. Settings of a single process (`runs_max`, `log`, …) are not
//! shared.
//!
//! The models are shared as the text of their file, so that a worker needs no access to the file. The text names secrets
//! and has none.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::section::Scope;
use super::{Config, ConfigError, Origin};

/// The version of the stored form.
const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SharedSettings {
    v: u32,
    /// Incremented by every change, so that readers notice it.
    pub(crate) revision: u64,
    /// Values in the form of the command line.
    values: BTreeMap<String, String>,
    /// The text of the file of models.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) models: String,
}

impl SharedSettings {
    /// Parses them. `None` if the text is invalid or of a newer version.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().filter(|shared: &Self| shared.v == VERSION)
    }

    /// The stored form.
    pub(crate) fn encode(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are JSON")
    }
}

impl Config {
    /// The shared settings. The revision stays the same if nothing changed, else it is incremented.
    pub(crate) fn shared_after(&self, models: &str, before: Option<&SharedSettings>) -> SharedSettings {
        let shared = self.rows().filter(|row| row.scope == Scope::Shared);
        let values: BTreeMap<_, _> = shared.map(|row| (row.name.to_owned(), row.value)).collect();
        let revision = match before {
            Some(before) if before.values == values && before.models == models => before.revision,
            Some(before) => before.revision + 1,
            None => 1,
        };
        SharedSettings { v: VERSION, revision, values, models: models.to_owned() }
    }

    /// Adopts the server's settings; an error if this process was given a different value.
    pub(crate) fn adopt(&mut self, shared: &SharedSettings) -> Result<(), ConfigError> {
        for (name, theirs) in &shared.values {
            let row = self.rows().find(|row| row.name == name).ok_or_else(|| newer(name))?;
            let (ours, origin) = (row.value, self.origin(row.name));
            if !matches!(origin, Origin::Default | Origin::Server) && ours != *theirs {
                return Err(ConfigError::new(
                    format!("{name} ({origin}) is {ours:?} here, but {theirs:?} for the server of this data directory"),
                    format!("leave {name} out: a worker takes it from the server. To change it, restart the server"),
                ));
            }
            self.set_value(name, theirs)
                .map_err(|complaint| ConfigError::new(format!("{name} (the server): {complaint}"), MISMATCH))?;
            self.origins_of_values.insert(row.name, Origin::Server);
        }
        self.adopt_models(&shared.models)
    }

    /// A worker needs no file of models. If it has one, it says the same.
    fn adopt_models(&self, theirs: &str) -> Result<(), ConfigError> {
        if self.models.models_file.is_some() && self.models.text()? != theirs {
            let origin = self.origin("models_file");
            return Err(ConfigError::new(
                format!("models_file ({origin}) has other models than the server of this data directory"),
                "leave models_file out: a worker takes the models from the server. To change them, restart the server",
            ));
        }
        Ok(())
    }
}

const MISMATCH: &str = "start the worker from the same version as the server";

fn newer(name: &str) -> ConfigError {
    ConfigError::new(format!("the server has a setting {name:?} that this worker doesn't know"), MISMATCH)
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
        let shared = SharedSettings::parse(&server.shared_after("", None).encode()).unwrap();
        // Another spelling of the same value is not a contradiction; settings of a single process stay unchanged.
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
        let shared = config(&[]).shared_after("", None);
        for (name, value) in [("http_allowed", "http://127.0.0.1:1"), ("capacity", "3"), ("runs_per_agent", "1")] {
            let error = config(&[(name, value)]).adopt(&shared).unwrap_err();
            assert!(error.what.contains(name) && error.what.contains("flag --"), "{error:?}");
            assert!(error.help.contains("leave"), "{error:?}");
        }
    }

    /// These names are stored: workers of an earlier version reject an additional one, and a removed one would differ
    /// between workers.
    #[test]
    fn the_settings_that_workers_share_are_these() {
        let names: Vec<_> = config(&[]).shared_after("", None).values.into_keys().collect();
        let shared = [
            "allow_host_network",
            "capacity",
            "default_ttl",
            "disk_storage_max",
            "egress_bytes_max",
            "egress_connections_max",
            "egress_requests_per_minute_max",
            "http_allowed",
            "paused_max",
            "retention",
            "runs_per_agent",
            "runs_per_project",
            "snapshot_size_max",
            "snapshots_max",
            "ttl_max",
        ];
        assert_eq!(names, shared);
    }

    #[test]
    fn a_worker_takes_the_models_from_the_server_and_may_have_the_same_file() {
        let file = std::env::temp_dir().join(format!("saggar-models-{}.toml", std::process::id()));
        let models = "[providers.local]\nkind = \"ollama\"\n";
        std::fs::write(&file, models).unwrap();
        let given = [("models_file", file.to_str().unwrap())];
        let shared = SharedSettings::parse(&config(&given).shared_after(models, None).encode()).unwrap();
        assert_eq!((shared.models.as_str(), config(&[]).adopt(&shared)), (models, Ok(())));
        assert_eq!(config(&given).adopt(&shared), Ok(()));
        std::fs::write(&file, "").unwrap();
        let error = config(&given).adopt(&shared).unwrap_err();
        assert!(error.what.contains("models_file (flag --models-file)") && error.help.contains("leave"), "{error:?}");
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn a_change_raises_the_revision_and_nothing_else_does() {
        let first = config(&[]).shared_after("", None);
        assert_eq!((first.revision, config(&[("runs_max", "1")]).shared_after("", Some(&first))), (1, first.clone()));
        assert_eq!(config(&[("capacity", "1")]).shared_after("", Some(&first)).revision, 2);
        assert_eq!(config(&[]).shared_after("[providers.p]", Some(&first)).revision, 2);
    }

    #[test]
    fn what_a_newer_server_wrote_is_refused() {
        let mut shared = config(&[]).shared_after("", None);
        assert_eq!(SharedSettings::parse(&SharedSettings { v: 2, ..shared.clone() }.encode()), None);
        shared.values.insert("new".to_owned(), "1".to_owned());
        assert!(config(&[]).adopt(&shared).unwrap_err().what.contains("\"new\""));
    }
}
