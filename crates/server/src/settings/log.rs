//! Log level and format.

use super::section::{Setting, Table, setting};
use super::value::choice;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    pub log: LogLevel,
    pub log_format: LogFormat,
}

choice!(
    LogLevel {
        /// Failures.
        Error = "error",
        /// Problems that may lead to failures.
        Warn = "warn",
        /// Events for operators.
        Info = "info",
        /// Details for developers.
        Debug = "debug",
        /// Everything, including what libraries log.
        Trace = "trace",
    }
);
choice!(
    LogFormat {
        Text = "text",
        Json = "json",
    }
);

impl Default for LogSettings {
    fn default() -> Self {
        Self { log: LogLevel::Info, log_format: LogFormat::Text }
    }
}

impl Table for LogSettings {
    const SETTINGS: &'static [Setting<Self>] = &[
        setting!(log, Process, "log level: error, warn, info, debug, trace"),
        setting!(log_format, Process, "how: text, json"),
    ];
}
