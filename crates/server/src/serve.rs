//! The server's lifecycle: open, adopt, serve, stop. Sandboxes outlive it.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::Count;
use saggar_domain::net::EgressMaxima;
use saggar_http::access::spelling;
use saggar_http::listen::tls::{Certificate, Tls, TlsError};
use saggar_http::listen::{Bounds, LocalSocket, LocalSocketError, listen, listen_inside};
use saggar_http::{Gate, GateSettings};
use saggar_runtime::runs::{Hub, Live, Runs};
use saggar_runtime::{
    Fault, PoolSize, Sandboxes, Settings, SnapshotLimits, Subject, Upkeep, VolumeLimits, model_gateway,
};
use saggar_store::{KeySecret, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{OnceCell, watch};

use crate::compose;
use crate::idle::idle;
use crate::models;
use crate::server::{Server, Shared};
use crate::settings::{Auth, Config, ConfigError, catalogue};
use crate::work::{share, worker};

/// Time limit of ending the pool when the server stops.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The data directory can't be used.
    #[error("{0}")]
    Store(#[from] saggar_store::OpenError),
    /// Adopting sandboxes failed.
    #[error("{0}")]
    Runtime(#[from] Fault),
    #[error("can't listen on {address}: {}", source.kind())]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        source: std::io::Error,
    },
    /// The file of models can't be used.
    #[error("{0}")]
    Models(ConfigError),
    #[error(transparent)]
    Socket(#[from] LocalSocketError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An error of the operating system.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl ServeError {
    pub fn help(&self) -> String {
        match self {
            Self::Store(error) => error.help(),
            Self::Runtime(Fault::Refused(problem)) => problem.help.clone(),
            Self::Runtime(Fault::SealingKey { help, .. }) => (*help).to_owned(),
            Self::Runtime(_) => "see the lines above, and check the data directory".to_owned(),
            Self::Listen { .. } => "choose another port with --port, or stop the program that uses it".to_owned(),
            Self::Socket(LocalSocketError::InUse(_)) => {
                "stop the program that uses it, or choose another path with --socket".to_owned()
            }
            Self::Socket(_) => {
                "choose another path with --socket, in a directory that the server may write to".to_owned()
            }
            Self::Models(error) => error.help.clone(),
            Self::Tls(_) => "check --tls-certificate and --tls-key".to_owned(),
            Self::System(_) => "check the resource limits of this process".to_owned(),
        }
    }
}

/// Serves until SIGTERM or SIGINT. `program` is the binary that supervisors are started from.
pub async fn serve(config: Config, program: PathBuf) -> Result<(), ServeError> {
    let address = config.listen.socket_address();
    let models_text = config.models.text().map_err(ServeError::Models)?;
    let catalogue = catalogue(&models_text).map_err(ServeError::Models)?;
    let store = Store::open(config.data_directory())?;
    let sandboxes = Sandboxes::open(settings(&config, program), store)?;
    sandboxes.check_sealing_keys().await?;
    let tls = certificate(&config).map(|certificate| Tls::open(&certificate)).transpose()?;
    if let Some(objection) = tls.as_ref().and_then(Tls::objection) {
        tracing::warn!("many clients, saggar's included, will refuse tls_certificate: {objection}");
    }
    let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })?;
    let address = listener.local_addr()?;
    let mode = config.listen.socket_mode.bits();
    let local = config.listen.socket.as_deref().map(|path| LocalSocket::open(path, mode)).transpose()?;
    if let Some(local) = &local {
        tracing::info!(path = %local.path().display(), "listening on a Unix socket");
    }
    let model_connections = sandboxes.model_connections();
    let adopted = sandboxes.adopt().await?;
    tracing::info!(
        live = adopted.live,
        ready = adopted.ready,
        ended = adopted.ended,
        strangers = adopted.strangers,
        "adopted existing sandboxes"
    );
    let interrupted = sandboxes.recover_template_jobs().await?;
    if interrupted > 0 {
        tracing::warn!(jobs = interrupted, "an earlier server stopped before these template jobs had ended");
    }
    let lost = sandboxes.bill_lost_model_calls().await?;
    if lost > 0 {
        tracing::warn!(
            calls = lost,
            "an earlier server died while sandboxes of runs called models; all that was set aside is billed"
        );
    }
    let models = model_gateway(&sandboxes, catalogue);
    let upkeep = Upkeep::start(&sandboxes);
    let hub = Hub::default();
    let ear = hear_workers(hub.live().clone(), config.data_directory().to_owned());
    let runs = Runs::new(sandboxes.store().clone(), hub.clone()).with_models(models.clone());
    let runs = runs.with_workspaces(sandboxes.settings().workspaces.keys().cloned());
    share(&config, &models_text, sandboxes.store()).await?;
    let (worker, _) = worker(&config, &sandboxes, models.clone(), hub);
    let (stop, stopping) = watch::channel(false);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    // The first key is shown once, so it is created only when nothing that often fails can come between creating and
    // showing it.
    let (everybody, secret) = match config.listen.auth {
        Auth::Keys => (None, sandboxes.first_start().await?.1),
        // No key would be required. The first start that requires keys creates one.
        Auth::Off => (Some(Subject::Anybody { project: sandboxes.first_project().await? }), None),
    };
    let scheme = if config.listen.tls { "https" } else { "http" };
    let url = format!("{scheme}://{}", reachable(address));
    if address.ip().is_unspecified() {
        tracing::info!(%address, "listening on all addresses of this host");
    }
    announce(&url, &config, secret.as_ref(), tls.as_ref())?;
    let grace = config.limits.shutdown_grace;
    let bounds = Bounds { all: config.limits.connections_max, per_address: config.limits.connections_per_address };
    let gate = Arc::new(Gate::new(sandboxes.clone(), gate_settings(&config), everybody, stopping.clone()));
    let server = Shared(Arc::new(Server {
        e2b: saggar_e2b::Shared::new(Arc::clone(&gate), config.e2b.e2b_network.mode()),
        gate,
        runs,
        models,
        model_room: Default::default(),
        origins: config.listen.origins,
        capabilities: OnceCell::new(),
    }));
    let inside = models::inside::router(server.clone());
    let inside =
        listen_inside(model_connections, inside, models::inside::BOUNDS, stopping.clone(), models::inside::GRACE);
    let (ended, working) = (stopping.clone(), worker);
    let working = tokio::spawn(async move { working.run(ended).await });
    let serving =
        listen(listener, local, compose::router(server), tls.map(|tls| tls.acceptor), bounds, stopping, grace);
    let told = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = idle(sandboxes.store(), config.limits.stop_when_idle) => {
                tracing::info!("nothing has needed this server for a while");
            }
        }
        tracing::info!("stopping; sandboxes keep running");
        stop.send_replace(true);
        std::future::pending::<()>().await
    };
    tokio::select! {
        // Programs in sandboxes try again at the next server.
        ((), ()) = futures_util::future::join(serving, inside) => {}
        () = told => {}
        () = ear => {}
    }
    stop.send_replace(true);
    // It has its own grace period, and another worker continues anything unfinished.
    if let Err(error) = working.await {
        tracing::error!(error = %error, "the server's worker failed");
    }
    if tokio::time::timeout(DRAIN_PATIENCE, sandboxes.stop_template_jobs()).await.is_err() {
        tracing::warn!("some template jobs are left to the next start, which reports them as failed");
    }
    upkeep.stop().await;
    // The pool has no owners: it must not outlive the server that would give it away.
    if tokio::time::timeout(DRAIN_PATIENCE, sandboxes.drain_pool()).await.is_err() {
        tracing::warn!("some sandboxes of the pool are left to the next start");
    }
    Ok(())
}

/// Passes on what models say in runs of workers beside this server. Never returns.
async fn hear_workers(live: Live, data: PathBuf) {
    match live.hear_workers(&data) {
        Ok(ear) => ear.run().await,
        Err(error) => tracing::warn!(error = %error, "runs of `saggar worker` have no live text"),
    }
    std::future::pending().await
}

pub(crate) fn settings(config: &Config, program: PathBuf) -> Settings {
    Settings {
        data_directory: config.data_directory().to_owned(),
        secrets_key_file: config.storage.secrets_key_file.clone(),
        program,
        capacity: config.sandboxes.capacity,
        pool: PoolSize {
            least: config.sandboxes.pool_min,
            most: config.sandboxes.pool_max.min(config.sandboxes.capacity),
        },
        default_ttl: config.sandboxes.default_ttl,
        ttl_max: config.sandboxes.ttl_max,
        allow_host_network: config.sandboxes.allow_host_network,
        public_templates: config.sandboxes.public_templates.clone(),
        import_registries: config.templates.import_registries.clone(),
        import_size_max: config.templates.import_size_max,
        build_network: config.templates.build_network.clone(),
        build_memory: config.templates.build_memory,
        build_cpus: config.templates.build_cpus,
        build_disk: config.templates.build_disk,
        build_timeout: config.templates.build_timeout,
        template_jobs_per_project: config.templates.template_jobs_per_project,
        warm_imports: config.sandboxes.warm_imports.clone(),
        disk_storage_max: config.sandboxes.disk_storage_max,
        workspaces: config.workspaces.workspaces.iter().map(|one| (one.name.clone(), one.path.clone())).collect(),
        volumes: VolumeLimits {
            count_max: config.volumes.volumes_max,
            bytes_max: config.volumes.volumes_bytes_max,
            default_size: config.volumes.volume_size,
        },
        snapshots: SnapshotLimits {
            count_max: config.snapshots.snapshots_max,
            bytes_max: config.snapshots.snapshot_size_max,
        },
        egress_maxima: EgressMaxima {
            bytes: config.sandboxes.egress_bytes_max,
            connections: Some(Count::new(config.sandboxes.egress_connections_max as u64)),
            requests_per_minute: config.sandboxes.egress_requests_per_minute_max.map(|most| Count::new(most as u64)),
        },
        retention: config.sandboxes.retention,
        runs_retention: config.runs.runs_retention,
        paused_max: config.sandboxes.paused_max,
    }
}

fn gate_settings(config: &Config) -> GateSettings {
    GateSettings {
        tls: config.listen.tls,
        domain: config.listen.domain.as_str().to_owned(),
        default_ttl: config.sandboxes.default_ttl,
        upload_max: config.limits.upload_max,
        requests_per_key: config.limits.requests_per_key,
    }
}

/// The server's certificate; `None` without TLS.
fn certificate(config: &Config) -> Option<Certificate> {
    let given = config.listen.tls_certificate.clone().zip(config.listen.tls_key.clone());
    config.listen.tls.then(|| match given {
        Some((certificate, key)) => Certificate::Given { certificate, key },
        None => Certificate::SelfMade {
            data_directory: config.data_directory().to_owned(),
            names: vec![
                "localhost".to_owned(),
                config.listen.address.to_string(),
                config.listen.domain.as_str().to_owned(),
                format!("*.{}", config.listen.domain.as_str()),
            ],
        },
    })
}

/// A URL that can be opened. The wildcard address can't, so the loopback address replaces it.
fn reachable(address: SocketAddr) -> String {
    if address.ip().is_unspecified() { format!("localhost:{}", address.port()) } else { address.to_string() }
}

/// The host of a URL that [`reachable`] made.
fn host_of(url: &str) -> &str {
    let place = url.split_once("://").map_or(url, |(_, place)| place);
    place.rsplit_once(':').map_or(place, |(host, _)| host)
}

/// The first example of E2B's documentation, for a shell.
const E2B_EXAMPLE: &str = r#"python3 <<'END'
from e2b import Sandbox
sandbox = Sandbox.create()
print(sandbox.commands.run("echo hello").stdout)
sandbox.kill()
END
"#;

/// Prints where the server is, and how to use it. Programs wait for the line that begins with `listening`.
fn announce(url: &str, config: &Config, secret: Option<&KeySecret>, tls: Option<&Tls>) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    // The file of a certificate that clients can't verify unless they are given it.
    let trusted = tls.filter(|tls| tls.is_trustable_as(host_of(url))).map(|tls| tls.path.display());
    let trust = match (tls, &trusted) {
        (None, _) => String::new(),
        (Some(_), Some(path)) => format!("--cacert {path} "),
        // It is for other names than the address here, or its issuer is trusted anyway.
        (Some(_), None) => "-k ".to_owned(),
    };
    let curl = format!("  curl -s {trust}-X POST {url}/api/v1/sandboxes");
    match (secret, config.listen.auth) {
        (Some(secret), _) => {
            let key = secret.expose();
            writeln!(out, "API key (shown this once): {key}\n\nTry it:\n\n{curl} -H 'Authorization: Bearer {key}'\n")?;
        }
        (None, Auth::Off) => writeln!(out, "No key is required. Try it:\n\n{curl}\n")?,
        (None, Auth::Keys) => {}
    }
    let key = match (secret.and_then(|secret| spelling::spelled(secret.expose())), config.listen.auth) {
        (Some(key), _) => key,
        // Clients require one, but it isn't checked.
        (None, Auth::Off) => "e2b_00".to_owned(),
        (None, Auth::Keys) => "YOUR_KEY".to_owned(),
    };
    let note = if key == "YOUR_KEY" { "; YOUR_KEY is any key of this server" } else { "" };
    // Without indentation, so that it can be pasted.
    writeln!(out, "With E2B's clients, unchanged (pip install e2b{note}):\n")?;
    writeln!(out, "export E2B_API_URL={url} E2B_SANDBOX_URL={url} E2B_VOLUME_API_URL={url} E2B_API_KEY={key}")?;
    if let Some(path) = &trusted {
        writeln!(out, "export SSL_CERT_FILE={path} NODE_EXTRA_CA_CERTS={path}")?;
    }
    writeln!(out, "{E2B_EXAMPLE}")?;
    if let Some(tls) = tls {
        writeln!(out, "certificate SHA-256 {}", tls.fingerprint)?;
    }
    writeln!(out, "listening on {url}")?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_can_be_opened() {
        for (address, expected) in [
            ("0.0.0.0:7420", "localhost:7420"),
            ("[::]:7420", "localhost:7420"),
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("192.0.2.1:443", "192.0.2.1:443"),
        ] {
            assert_eq!(reachable(address.parse().unwrap()), expected);
            assert_eq!(Some(host_of(&format!("https://{expected}"))), expected.rsplit_once(':').map(|(host, _)| host));
        }
    }
}
