//! Workers: the one within a server, and those that are processes of their own beside it.

use std::path::PathBuf;

use saggar_runtime::Sandboxes;
use saggar_runtime::runs::{Fixture, Hub, RealEffects, RunSettings, Worker, WorkerSettings};
use saggar_runtime::store::Store;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::config::Config;
use crate::serve::{ServeError, settings};

/// Drives runs beside a server until told to stop by SIGTERM or SIGINT. `program` is the binary that supervisors are started from.
pub async fn work(config: Config, program: PathBuf) -> Result<(), ServeError> {
    let store = Store::join(&config.data_directory)?;
    let sandboxes = Sandboxes::open(settings(&config, program), store)?;
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (stop, stopped) = watch::channel(false);
    let worker = worker(&config, &sandboxes, Hub::default());
    tracing::info!("working");
    let told = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("told to stop; runs go on elsewhere");
        stop.send_replace(true);
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = worker.run(stopped) => {}
        () = told => {}
    }
    Ok(())
}

/// A worker as the operator wants it.
pub(crate) fn worker(config: &Config, sandboxes: &Sandboxes, hub: Hub) -> Worker<Store, RealEffects> {
    let runs = RunSettings { http_allowed: config.http_allowed.clone(), keep_sandboxes: false };
    let effects = RealEffects::new(sandboxes.clone(), runs);
    let settings = WorkerSettings {
        data_directory: Some(config.data_directory.clone()),
        runs_max: u32::try_from(config.runs_max).unwrap_or(u32::MAX),
        per_agent: u32::try_from(config.runs_per_agent).unwrap_or(u32::MAX),
        per_project: u32::try_from(config.runs_per_project).unwrap_or(u32::MAX),
        grace: config.shutdown_grace,
        ..WorkerSettings::default()
    };
    Worker::new(sandboxes.store().clone(), effects, hub, settings)
}

/// Derives the run of a fixture again: how many entries agreed, or where behaviour has changed.
pub fn check_fixture(text: &str) -> Result<usize, String> {
    let fixture: Fixture = serde_json::from_str(text).map_err(|error| format!("it is no fixture: {error}"))?;
    fixture.check().map_err(|drift| drift.to_string())
}
