//! The server's settings on the command line, and `saggar config show`.
//!
//! Flags are generated from the server's table of settings, so that a setting has the same name and description
//! everywhere.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use saggar_domain::Problem;
use saggar_sandbox::DataDirectory;
use saggar_server::{Config, ConfigError, Given, Shown};

use crate::outcome::{OUR_FAILURE, problem_text, visible};
use crate::remote::{aligned, terminal_width};

/// Environment variable for the path of the settings file, in addition to `--config`.
const FILE_VARIABLE: &str = "SAGGAR_CONFIG";
/// Maximum size of a settings file, in bytes.
const CONFIG_LEN_MAX: u64 = 1 << 20;
/// Settings that are paths. Relative ones are resolved against the current directory.
const PATHS: &[&str] = &["data_dir", "secrets_key_file", "tls_certificate", "tls_key"];

/// Settings that are on or off. Their flags mean `true` without a value.
const SWITCHES: &[&str] = &["allow_host_network", "tls"];

/// Settings given as flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct SettingFlags {
    file: Option<PathBuf>,
    values: Vec<(String, String)>,
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config").long("config").value_name("FILE").value_parser(clap::value_parser!(PathBuf));
        let mut command =
            command.arg(file.help("Read settings from a TOML file; the environment and flags take precedence"));
        for (name, what) in saggar_server::names() {
            let flag = name.replace('_', "-");
            let what = sentence(what);
            let argument = Arg::new(name).long(flag).value_name("VALUE").help(what);
            command = command.arg(match SWITCHES.contains(&name) {
                true => argument.value_name("true|false").num_args(0..=1).default_missing_value("true"),
                false => argument.allow_hyphen_values(true),
            });
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.file = matches.get_one::<PathBuf>("config").cloned();
        for (name, _) in saggar_server::names() {
            if let Some(value) = matches.get_one::<String>(name) {
                self.values.push((name.to_owned(), value.clone()));
            }
        }
        Ok(())
    }
}

impl SettingFlags {
    /// Loads the settings from all sources.
    pub(crate) fn load(&self) -> Result<Config, ConfigError> {
        let wrong = |problem: Problem| ConfigError { what: problem.message, help: problem.help };
        let variable = std::env::var_os(FILE_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
        let file = match self.file.clone().or(variable) {
            None => None,
            Some(path) => {
                let text = saggar_given::read_given_text(&path, CONFIG_LEN_MAX).map_err(|error| ConfigError {
                    what: format!("the config file {} {error}", path.display()),
                    help: format!("{}; or leave --config and {FILE_VARIABLE} out", error.help()),
                })?;
                Some((path.display().to_string(), text))
            }
        };
        let absolute = |(name, value): &(String, String)| {
            let is_path = PATHS.contains(&name.as_str()) && !value.is_empty();
            let path = if is_path { std::path::absolute(value).ok() } else { None };
            (name.clone(), path.map_or_else(|| value.clone(), |path| path.display().to_string()))
        };
        Config::load(Given {
            data_directory: DataDirectory::default_path().map_err(wrong)?,
            secrets_key_file: default_key_file().unwrap_or_default(),
            file,
            environment: std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
                .collect(),
            flags: self.values.iter().map(absolute).collect(),
        })
    }
}

/// Capitalised, as help text is.
fn sentence(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().into_iter().flat_map(char::to_uppercase).chain(rest).collect()
}

/// Where the sealing keys of secrets are unless it is set; `None` for an ordinary user without a home directory.
fn default_key_file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = match rustix::process::geteuid().is_root() {
        true => PathBuf::from("/etc"),
        false => set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))?,
    };
    Some(directory.join("saggar/secrets.key"))
}

/// The server's data directory, for commands that need no other setting.
#[derive(Args, Clone, Debug)]
pub(crate) struct DataFlags {
    /// Read settings from a TOML file; the environment and flags take precedence
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The server's data directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
}

impl DataFlags {
    /// Loads the settings from all sources.
    pub(crate) fn load(&self) -> Result<Config, ConfigError> {
        let values = self.data_dir.iter().map(|path| ("data_dir".to_owned(), path.clone())).collect();
        SettingFlags { file: self.config.clone(), values }.load()
    }
}

/// The same, for commands that open what is sealed.
#[derive(Args, Clone, Debug)]
pub(crate) struct VaultFlags {
    #[command(flatten)]
    data: DataFlags,
    /// The file with the keys that seal secrets
    #[arg(long, value_name = "FILE")]
    secrets_key_file: Option<String>,
}

impl VaultFlags {
    /// Loads the settings from all sources.
    pub(crate) fn load(&self) -> Result<Config, ConfigError> {
        let given = [("data_dir", &self.data.data_dir), ("secrets_key_file", &self.secrets_key_file)];
        let values = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))).collect();
        SettingFlags { file: self.data.config.clone(), values }.load()
    }
}

/// A message about the data directory, with its name: the operator may use several.
pub(crate) fn naming(directory: &Path, message: &str) -> String {
    message.replacen("the data directory", &format!("the data directory {}", directory.display()), 1)
}

#[derive(Args, Debug)]
pub(crate) struct ConfigArguments {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(clap::Subcommand, Debug)]
pub(crate) enum ConfigCommand {
    /// Show every effective setting and its source
    Show {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        settings: SettingFlags,
    },
}

pub(crate) fn main(arguments: ConfigArguments) -> ExitCode {
    let ConfigCommand::Show { json, settings } = arguments.command;
    let config = match settings.load() {
        Ok(config) => config,
        Err(error) => return refused(&error),
    };
    let shown = config.shown();
    if json {
        let object: serde_json::Map<String, serde_json::Value> = shown
            .iter()
            .map(|one| (one.name.to_owned(), serde_json::json!({ "value": one.value, "from": one.from })))
            .collect();
        println!("{}", serde_json::Value::Object(object));
    } else {
        let row = |one: Shown| vec![one.name.to_owned(), visible(&one.value), visible(&one.from), one.what.to_owned()];
        let rows: Vec<Vec<String>> = shown.into_iter().map(row).collect();
        print!("{}", aligned(&["SETTING", "VALUE", "FROM", "WHAT IT DECIDES"], &rows, terminal_width()));
    }
    ExitCode::SUCCESS
}

/// Prints why the settings can't be used.
pub(crate) fn refused(error: &ConfigError) -> ExitCode {
    let problem = Problem::new(saggar_domain::Code::InvalidValue, error.what.clone(), error.help.clone());
    eprint!("{}", problem_text(&problem));
    ExitCode::from(OUR_FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_that_is_on_or_off_is_a_switch() {
        let shown = Config::default_in("/data".into()).shown();
        let is_switch = |one: &&Shown| one.value == "true" || one.value == "false";
        let mut switches: Vec<&str> = shown.iter().filter(is_switch).map(|one| one.name).collect();
        switches.sort_unstable();
        assert_eq!(switches, SWITCHES);
    }

    #[test]
    fn a_switch_needs_no_value() {
        for (arguments, expected) in [
            (&["serve", "--tls", "--port", "7"][..], &[("port", "7"), ("tls", "true")][..]),
            (&["serve", "--tls", "false", "--port", "7"], &[("port", "7"), ("tls", "false")]),
            (&["serve", "--port", "7", "--tls"], &[("port", "7"), ("tls", "true")]),
        ] {
            let matches = SettingFlags::augment_args(Command::new("serve")).try_get_matches_from(arguments).unwrap();
            let mut values = SettingFlags::from_arg_matches(&matches).unwrap().values;
            values.sort();
            let expected: Vec<_> = expected.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
            assert_eq!(values, expected);
        }
    }
}
