//! What is logged, and how.

use super::section::{Setting, Table, setting};
use super::value::choice;

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    pub log: LogLevel,
    pub log_format: LogFormat,
}

choice!(
    /// What is logged.
    LogLevel {
        /// Failures.
        Error = "error",
        /// Problems that may lead to failures.
        Warn = "warn",
        /// Events for operators.
        Info = "info",
        /// Details for developers.
        Debug = "debug",
    }
);
choice!(
    /// How it is logged.
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
        setting!(log, Process, "log level: error, warn, info, debug"),
        setting!(log_format, Process, "how: text, json"),
    ];
}
