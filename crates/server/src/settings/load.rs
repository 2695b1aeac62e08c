//! Loads the settings from their sources. Pure: the caller has read the file and the environment.

use std::path::PathBuf;

use super::section::Row;
use super::{Config, Origin};

/// Prefix of every environment variable.
const PREFIX: &str = "SAGGAR_";
/// Variables with the same prefix that belong to other commands, or name the file itself.
const NOT_OURS: &[&str] = &["SAGGAR_CONFIG", "SAGGAR_URL", "SAGGAR_API_KEY", "SAGGAR_CA", "SAGGAR_MUTATION_RULES"];

/// All sources, in order of increasing precedence.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// The default for `data_dir`.
    pub data_directory: PathBuf,
    /// The default for `secrets_key_file`.
    pub secrets_key_file: PathBuf,
    /// A file's name, for messages, and its content.
    pub file: Option<(String, String)>,
    pub environment: Vec<(String, String)>,
    /// The command line: names of settings and their values.
    pub flags: Vec<(String, String)>,
}

/// Why the settings can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct ConfigError {
    /// The problem and its source.
    pub what: String,
    pub help: String,
}

impl ConfigError {
    pub(super) fn new(what: impl Into<String>, help: impl Into<String>) -> Self {
        Self { what: what.into(), help: help.into() }
    }
}

impl Config {
    /// Loads the settings, and rejects invalid ones.
    pub fn load(given: Given) -> Result<Self, ConfigError> {
        let Given { data_directory, secrets_key_file, file, environment, flags } = given;
        let mut config = Self::default_in(data_directory);
        config.storage.secrets_key_file = secrets_key_file;
        if let Some((name, text)) = file {
            config.read_file(&name, &text)?;
        }
        config.read_environment(&environment)?;
        for (name, value) in flags {
            let flag = format!("--{}", name.replace('_', "-"));
            config.set(&name, &value, Origin::Flag(flag))?;
        }
        config.derive();
        config.check()?;
        Ok(config)
    }

    fn read_file(&mut self, file: &str, text: &str) -> Result<(), ConfigError> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            ConfigError::new(
                format!("{file} is malformed: {}", error.message()),
                "write one setting per line: port = 7420",
            )
        })?;
        for (name, value) in table {
            let text = plain(&value).ok_or_else(|| {
                let what = format!("{name} in {file} is a {}", value.type_str());
                ConfigError::new(what, "write a string, a number, true, false, or a list of strings")
            })?;
            self.set(&name, &text, Origin::File(file.to_owned()))?;
        }
        Ok(())
    }

    fn read_environment(&mut self, environment: &[(String, String)]) -> Result<(), ConfigError> {
        for (variable, value) in environment {
            let Some(name) = variable.strip_prefix(PREFIX) else { continue };
            // An empty variable counts as unset, as is common in shells.
            if NOT_OURS.contains(&variable.as_str()) || value.is_empty() {
                continue;
            }
            if is_of_kubernetes(variable, value) {
                self.ignored_variables.push(variable.clone());
                continue;
            }
            self.set(&name.to_ascii_lowercase(), value, Origin::Environment(variable.clone()))?;
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: &str, origin: Origin) -> Result<(), ConfigError> {
        let Some(row) = self.rows().find(|row| row.name == name) else {
            let what = format!("unknown setting {name:?} ({origin})");
            return Err(ConfigError::new(what, format!("did you mean {:?}?", self.nearest(name))));
        };
        self.set_value(name, value).map_err(|complaint| {
            ConfigError::new(format!("{name} ({origin}): {complaint}"), format!("{name}: {}", row.what))
        })?;
        self.origins_of_values.insert(row.name, origin);
        Ok(())
    }

    /// Every setting with its value, in the order of the sections.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row> {
        self.sections().into_iter().flat_map(|section| section.rows())
    }

    pub(super) fn set_value(&mut self, name: &str, value: &str) -> Result<(), String> {
        let outcome = self.sections_mut().into_iter().find_map(|section| section.set(name, value));
        outcome.unwrap_or_else(|| Err(format!("unknown setting {name:?}")))
    }

    /// The setting with the most similar name.
    fn nearest(&self, name: &str) -> &'static str {
        let likeness = |row: &Row| (strsim::jaro_winkler(name, row.name) * 1e6) as u64;
        self.rows().max_by_key(likeness).map_or("port", |row| row.name)
    }
}

/// Whether Kubernetes set a variable, which it does in every pod for each Service: for one named `saggar` or
/// `saggar-…` they have our prefix. `SAGGAR_PORT=7000` is ours, `SAGGAR_PORT=tcp://10.0.0.1:7000` is not.
fn is_of_kubernetes(variable: &str, value: &str) -> bool {
    if ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme)) {
        return variable.ends_with("_PORT") || variable.contains("_PORT_");
    }
    let is_service = variable.ends_with("_SERVICE_HOST")
        || variable.ends_with("_SERVICE_PORT")
        || variable.contains("_SERVICE_PORT_");
    // …_PORT_7420_TCP_ADDR, …_PORT_7420_TCP_PORT, …_PORT_7420_TCP_PROTO
    let is_port = || {
        let mut words = variable.split("_PORT_").nth(1)?.split('_');
        let is_number = words.next()?.bytes().all(|byte| byte.is_ascii_digit());
        let is_protocol = ["TCP", "UDP", "SCTP"].contains(&words.next()?);
        Some(is_number && is_protocol)
    };
    is_service || is_port() == Some(true)
}

/// The names of all settings with their descriptions, for the command line.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows: Vec<Row> = Config::default().rows().collect();
    rows.into_iter().map(|row| (row.name, row.what))
}

/// A value of the file as the text it would be on the command line.
fn plain(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(is_so) => Some(is_so.to_string()),
        toml::Value::Array(values) => {
            let texts: Option<Vec<&str>> = values.iter().map(toml::Value::as_str).collect();
            texts.map(|texts| texts.join(","))
        }
        toml::Value::Float(_) | toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::WebOrigin;
    use super::*;

    fn given(file: &str, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Given {
        let owned = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        Given {
            secrets_key_file: PathBuf::default(),
            data_directory: "/data".into(),
            file: Some(("saggar.toml".to_owned(), file.to_owned())),
            environment: owned(environment),
            flags: owned(flags),
        }
    }

    #[test]
    fn later_wins_and_every_value_knows_where_it_came_from() {
        let file = "port = 1\ncapacity = 20\norigins = [\"https://a.example\", \"https://b.example\"]\n";
        let environment =
            [("SAGGAR_PORT", "3"), ("SAGGAR_POOL_MAX", "4"), ("PATH", "/bin"), ("SAGGAR_URL", "x"), ("SAGGAR_CA", "y")];
        let config = Config::load(given(file, &environment, &[("port", "5")])).unwrap();
        assert_eq!((config.listen.port, config.sandboxes.capacity, config.sandboxes.pool_max), (5, 20, 4));
        assert_eq!(
            config.listen.origins.iter().map(WebOrigin::as_str).collect::<Vec<_>>(),
            ["https://a.example", "https://b.example"]
        );
        assert_eq!(config.origin("port"), Origin::Flag("--port".to_owned()));
        assert_eq!(config.origin("capacity"), Origin::File("saggar.toml".to_owned()));
        assert_eq!(config.origin("pool_max"), Origin::Environment("SAGGAR_POOL_MAX".to_owned()));
        assert_eq!(config.origin("address"), Origin::Default);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_nearest_one() {
        for (given, nearest) in [
            (given("prot = 1", &[], &[]), "port"),
            (given("", &[("SAGGAR_DATADIR", "/x")], &[]), "data_dir"),
            (given("", &[], &[("pool-max", "1")]), "pool_max"),
        ] {
            let error = Config::load(given).unwrap_err();
            assert!(error.what.contains("unknown setting"), "{error:?}");
            assert_eq!(error.help, format!("did you mean {nearest:?}?"));
        }
    }

    #[test]
    fn what_kubernetes_sets_for_a_service_of_our_name_is_ignored_and_told() {
        let theirs = [
            ("SAGGAR_PORT", "tcp://10.0.0.1:7420"),
            ("SAGGAR_PORT_7420_TCP", "tcp://10.0.0.1:7420"),
            ("SAGGAR_PORT_7420_TCP_PROTO", "tcp"),
            ("SAGGAR_PORT_7420_TCP_PORT", "7420"),
            ("SAGGAR_PORT_7420_TCP_ADDR", "10.0.0.1"),
            ("SAGGAR_SERVICE_HOST", "10.0.0.1"),
            ("SAGGAR_SERVICE_PORT", "7420"),
            ("SAGGAR_SERVICE_PORT_HTTP", "7420"),
            ("SAGGAR_API_SERVICE_HOST", "10.0.0.2"),
            ("SAGGAR_API_PORT", "udp://10.0.0.2:1"),
        ];
        let config = Config::load(given("", &theirs, &[])).unwrap();
        assert_eq!(config.listen.port, 7420);
        assert_eq!(config.ignored_variables, theirs.map(|(name, _)| name));
        assert_eq!(Config::load(given("", &[("SAGGAR_PORT", "7000")], &[])).unwrap().listen.port, 7000);
        for ours in
            [("SAGGAR_PORTS", "1"), ("SAGGAR_PORT_FOO", "1"), ("SAGGAR_SERVICE", "1"), ("SAGGAR_PORT", "http://x")]
        {
            assert!(Config::load(given("", &[ours], &[])).is_err(), "{ours:?}");
        }
    }

    #[test]
    fn bounds_that_nobody_set_leave_room_for_others() {
        let config = Config::load(given("connections_max = 100", &[], &[])).unwrap();
        assert_eq!((config.limits.connections_per_address, config.limits.requests_per_key), (75, 50));
        let config = Config::load(given("connections_max = 1\nrequests_per_key = 9", &[], &[])).unwrap();
        assert_eq!((config.limits.connections_per_address, config.limits.requests_per_key), (1, 9));
    }

    #[test]
    fn a_value_that_cannot_be_read_is_named_with_its_place() {
        for (file, name) in [
            ("port = 70000", "port"),
            ("port = 1.5", "port"),
            ("address = \"localhost\"", "address"),
            ("data_dir = \"relative\"", "data_dir"),
            ("default_ttl = \"soon\"", "default_ttl"),
            ("auth = \"none\"", "auth"),
            ("tls = \"perhaps\"", "tls"),
            ("domain = \"a b\"", "domain"),
            ("origins = [\"*\"]", "origins"),
            ("capacity = -1", "capacity"),
            ("upload_max = \"much\"", "upload_max"),
            ("[port]\nx = 1", "port"),
        ] {
            let error = Config::load(given(file, &[], &[])).unwrap_err();
            assert!(error.what.contains(name) && error.what.contains("saggar.toml"), "{file}: {error:?}");
        }
        assert!(Config::load(given("port = ", &[], &[])).unwrap_err().what.contains("is malformed"));
    }

    #[test]
    fn what_is_shown_reads_back_the_same() {
        let config = Config::default_in("/data".into());
        let mut again = Config::default_in("/elsewhere".into());
        for row in config.rows().filter(|row| !row.value.is_empty()) {
            again.set_value(row.name, &row.value).unwrap();
        }
        assert_eq!(again, config);
    }
}
