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
        /// What is broken.
        Error = "error",
        /// What will be.
        Warn = "warn",
        /// What an operator would want to know.
        Info = "info",
        /// What a developer would.
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
        setting!(log, Process, "what is logged: error, warn, info, debug"),
        setting!(log_format, Process, "how: text, json"),
    ];
}
