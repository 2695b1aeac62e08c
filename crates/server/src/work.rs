//! Workers: the one in a server, and separate processes beside it.

use std::path::PathBuf;
use std::time::Duration;

use saggar_domain::{Code, Problem};
use saggar_gateway::Gateway;
use saggar_runtime::runs::{Fixture, Hub, Live, RealEffects, RunSettings, Worker, WorkerSettings};
use saggar_runtime::{Fault, Sandboxes, model_gateway};
use saggar_store::{MetaKey, OpenError, Store};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::serve::{ServeError, settings};
use crate::settings::{Config, SharedSettings, catalogue};

/// How often a worker checks for changed settings of the server.
const SETTINGS_EVERY: Duration = Duration::from_secs(1);

/// Executes runs beside a server until SIGTERM or SIGINT. `program` is the binary that supervisors are started from.
pub async fn work(mut config: Config, program: PathBuf) -> Result<(), ServeError> {
    const SERVE_FIRST: &str =
        "start `saggar serve` with this data directory first: a worker uses the server's store and settings";
    let store = Store::join(config.data_directory()).map_err(|error| match error {
        OpenError::NoStore => refused(&error.to_string(), SERVE_FIRST),
        other => other.into(),
    })?;
    let shared = shared(&store)
        .await?
        .ok_or_else(|| refused("no server has written its settings into this data directory yet", SERVE_FIRST))?;
    config.adopt(&shared).map_err(|error| refused(&error.what, &error.help))?;
    let models = catalogue(&shared.models).map_err(ServeError::Models)?;
    let sandboxes = Sandboxes::open(settings(&config, program), store)?;
    let models = model_gateway(&sandboxes, models);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (stop, stopped) = watch::channel(false);
    let (live, relay) = Live::to_server(config.data_directory());
    let (worker, effects) = worker(&config, &sandboxes, models, Hub::with_live(live));
    tracing::info!(settings = shared.revision, "working");
    let told = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping; other workers continue the runs");
        stop.send_replace(true);
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = worker.run(stopped) => {}
        () = told => {}
        () = relay.run() => {}
        () = follow(config, shared.revision, &sandboxes, &effects, &worker) => {}
    }
    Ok(())
}

/// Applies changed settings of the server. Effects in progress continue with the old ones.
async fn follow(
    mut config: Config,
    mut revision: u64,
    sandboxes: &Sandboxes,
    effects: &RealEffects,
    worker: &Worker<Store, RealEffects>,
) {
    loop {
        tokio::time::sleep(SETTINGS_EVERY).await;
        let shared = match shared(sandboxes.store()).await {
            Ok(Some(shared)) if shared.revision != revision => shared,
            Ok(_) => continue,
            Err(error) => {
                tracing::warn!(error = %error, "reading the server's settings failed");
                continue;
            }
        };
        revision = shared.revision;
        let mut next = config.clone();
        let models = match next.adopt(&shared).and_then(|()| catalogue(&shared.models)) {
            Ok(models) => models,
            Err(error) => {
                tracing::error!(error = %error, help = error.help, "keeping the current settings");
                continue;
            }
        };
        config = next;
        effects.models().set(models);
        sandboxes.set_limits(config.sandboxes.capacity, config.sandboxes.ttl_max);
        effects.set(run_settings(&config));
        worker.set_limits(count(config.runs.runs_per_agent), count(config.runs.runs_per_project));
        tracing::info!(settings = revision, "applied changed settings of the server");
    }
}

/// Stores the settings that every worker uses, and the text of the file of models.
pub(crate) async fn share(config: &Config, models: &str, store: &Store) -> Result<(), ServeError> {
    let before = store.meta(MetaKey::SharedSettings).await.map_err(Fault::from)?;
    let before = before.as_deref().and_then(SharedSettings::parse);
    let shared = config.shared_after(models, before.as_ref());
    if before.as_ref() != Some(&shared) {
        store.set_meta(MetaKey::SharedSettings, shared.encode()).await.map_err(Fault::from)?;
    }
    Ok(())
}

/// The stored settings; `None` if no server has stored any.
async fn shared(store: &Store) -> Result<Option<SharedSettings>, ServeError> {
    let Some(text) = store.meta(MetaKey::SharedSettings).await.map_err(Fault::from)? else { return Ok(None) };
    let shared = SharedSettings::parse(&text).ok_or_else(|| {
        refused(
            "the server's settings have a version that this worker doesn't know",
            "start the worker from the same version as the server",
        )
    })?;
    Ok(Some(shared))
}

fn refused(what: &str, help: &str) -> ServeError {
    ServeError::Runtime(Fault::Refused(Problem::new(Code::InvalidValue, what, help)))
}

/// A worker with the operator's settings, and its effects.
pub(crate) fn worker(
    config: &Config,
    sandboxes: &Sandboxes,
    models: Gateway,
    hub: Hub,
) -> (Worker<Store, RealEffects>, RealEffects) {
    let effects = RealEffects::new(sandboxes.clone(), models, run_settings(config)).telling(hub.live());
    let settings = WorkerSettings {
        data_directory: Some(config.data_directory().to_owned()),
        runs_max: count(config.runs.runs_max),
        per_agent: count(config.runs.runs_per_agent),
        per_project: count(config.runs.runs_per_project),
        grace: config.limits.shutdown_grace,
        ..WorkerSettings::default()
    };
    (Worker::new(sandboxes.store().clone(), effects.clone(), hub, settings), effects)
}

fn run_settings(config: &Config) -> RunSettings {
    RunSettings { http_allowed: config.runs.http_allowed.clone(), keep_sandboxes: false }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Replays a fixture's run: returns how many entries agreed, or where behaviour has changed.
pub fn check_fixture(text: &str) -> Result<usize, String> {
    let fixture: Fixture = serde_json::from_str(text).map_err(|error| format!("it is not a fixture: {error}"))?;
    fixture.check().map_err(|drift| drift.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_worker_without_a_server_to_go_by_is_refused() {
        let directory = std::env::temp_dir().join(format!("saggar-work-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let check = async |directory: PathBuf, expected: &str| {
            let error = work(Config::default_in(directory), "/nonexistent".into()).await.unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert!(error.help().contains("saggar serve"), "{}", error.help());
        };
        check(directory.join("missing"), "has no store").await;
        check(directory.clone(), "has no store").await;
        assert!(!directory.join("missing").exists());
        drop(Store::open(&directory).unwrap());
        check(directory.clone(), "no server has written its settings").await;
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
