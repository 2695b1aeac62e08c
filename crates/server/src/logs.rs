//! Logging: to stderr, as text or JSON, at the configured level. Secrets and contents are never logged.

use tracing_subscriber::filter::LevelFilter;

use crate::settings::{Config, LogFormat, LogLevel};

/// Starts logging. Once per process.
pub fn start(config: &Config) {
    let level = match config.log.log {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false);
    let started = match config.log.log_format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if started.is_err() {
        tracing::debug!("logging was already initialised");
    }
    if !config.ignored_variables.is_empty() {
        let variables = config.ignored_variables.join(" ");
        tracing::warn!(
            variables,
            "ignored variables that Kubernetes sets for a Service; avoid them with enableServiceLinks: false"
        );
    }
}
