//! Where logs go: to stderr, as text or as JSON, at the level the operator chose. Secrets and contents never get there: nobody logs them.

use tracing_subscriber::filter::LevelFilter;

use crate::settings::{Config, LogFormat, LogLevel};

/// Begins to log. Once in a process.
pub fn start(config: &Config) {
    let level = match config.log.log {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
    };
    let builder = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_target(false);
    let started = match config.log.log_format {
        LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    if started.is_err() {
        tracing::debug!("somebody logs already");
    }
    if !config.ignored_variables.is_empty() {
        let variables = config.ignored_variables.join(" ");
        tracing::warn!(
            variables,
            "ignored: Kubernetes sets these for a Service; set enableServiceLinks: false to be without them"
        );
    }
}
