//! A server's life: opened, found again what there was, answering, stopping. Sandboxes live on without it.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use saggar_http::access::spelling;
use saggar_http::listen::tls::{self, Certificate, TlsError};
use saggar_http::listen::{Bounds, listen};
use saggar_http::{Gate, GateSettings};
use saggar_runtime::runs::{Hub, Runs};
use saggar_runtime::{Fault, PoolSize, Sandboxes, Settings, Subject, Upkeep};
use saggar_store::{KeySecret, Store};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{OnceCell, watch};

use crate::compose;
use crate::server::{Server, Shared};
use crate::settings::{Auth, Config};
use crate::work::{share, worker};

/// How long the end of what nobody owns may take when the server goes.
const DRAIN_PATIENCE: Duration = Duration::from_secs(10);

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The data directory can't be used.
    #[error("{0}")]
    Store(#[from] saggar_store::OpenError),
    /// Sandboxes can't be taken over.
    #[error("{0}")]
    Runtime(#[from] Fault),
    /// The address can't be had.
    #[error("can't listen on {address}: {}", source.kind())]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        source: std::io::Error,
    },
    /// TLS can't be spoken.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Something of the operating system.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

impl ServeError {
    /// What to do next.
    pub fn help(&self) -> String {
        match self {
            Self::Store(error) => error.help(),
            Self::Runtime(Fault::Refused(problem)) => problem.help.clone(),
            Self::Runtime(_) => "look at the lines above, and at the data directory".to_owned(),
            Self::Listen { .. } => "choose another port with --port, or stop what has it".to_owned(),
            Self::Tls(_) => "look at tls_certificate and tls_key".to_owned(),
            Self::System(_) => "look at the limits of this process".to_owned(),
        }
    }
}

/// Serves until told to stop by SIGTERM or SIGINT. `program` is the binary that supervisors are started from.
pub async fn serve(config: Config, program: PathBuf) -> Result<(), ServeError> {
    let address = config.listen.socket_address();
    let store = Store::open(config.data_directory())?;
    let sandboxes = Sandboxes::open(settings(&config, program), store)?;
    let tls = certificate(&config).map(|certificate| tls::acceptor(&certificate)).transpose()?;
    let listener = TcpListener::bind(address).await.map_err(|source| ServeError::Listen { address, source })?;
    let address = listener.local_addr()?;
    let adopted = sandboxes.adopt().await?;
    tracing::info!(
        live = adopted.live,
        ready = adopted.ready,
        ended = adopted.ended,
        strangers = adopted.strangers,
        "took over what there was"
    );
    let upkeep = Upkeep::start(&sandboxes);
    let hub = Hub::default();
    let runs = Runs::new(sandboxes.store().clone(), hub.clone());
    share(&config, sandboxes.store()).await?;
    let (worker, _) = worker(&config, &sandboxes, hub);
    let (stop, stopping) = watch::channel(false);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    // The first key is shown once, so it is made when nothing that often fails can come between making and showing it.
    let (everybody, secret) = match config.listen.auth {
        Auth::Keys => (None, sandboxes.first_start().await?.1),
        // Nobody would be asked for it. The first start that asks for keys makes one.
        Auth::Off => (Some(Subject::Anybody { project: sandboxes.first_project().await? }), None),
    };
    let scheme = if config.listen.tls { "https" } else { "http" };
    let url = format!("{scheme}://{}", reachable(address));
    if address.ip().is_unspecified() {
        tracing::info!(%address, "listening on all addresses of this host");
    }
    announce(&url, &config, secret.as_ref(), tls.as_ref().map(|(_, fingerprint)| fingerprint.as_str()))?;
    let grace = config.limits.shutdown_grace;
    let bounds = Bounds { all: config.limits.connections_max, per_address: config.limits.connections_per_address };
    let gate = Arc::new(Gate::new(sandboxes.clone(), gate_settings(&config), everybody, stopping.clone()));
    let server = Shared(Arc::new(Server {
        e2b: saggar_e2b::Shared::new(Arc::clone(&gate), config.e2b.e2b_network.mode()),
        gate,
        runs,
        origins: config.listen.origins,
        capabilities: OnceCell::new(),
    }));
    let (ended, working) = (stopping.clone(), worker);
    let working = tokio::spawn(async move { working.run(ended).await });
    let serving = listen(listener, compose::router(server), tls.map(|(acceptor, _)| acceptor), bounds, stopping, grace);
    let told = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("told to stop; sandboxes live on");
        stop.send_replace(true);
        std::future::pending::<()>().await
    };
    tokio::select! {
        () = serving => {}
        () = told => {}
    }
    stop.send_replace(true);
    // It has its own grace, and what is not finished by then goes on with whoever takes it.
    if let Err(error) = working.await {
        tracing::error!(error = %error, "the worker of this server failed");
    }
    upkeep.stop().await;
    // What is kept ready has no owner and no end of its own: it must not outlive whoever would give it away.
    if tokio::time::timeout(DRAIN_PATIENCE, sandboxes.drain_pool()).await.is_err() {
        tracing::warn!("some sandboxes without an owner are left to the next start");
    }
    Ok(())
}

pub(crate) fn settings(config: &Config, program: PathBuf) -> Settings {
    Settings {
        data_directory: config.data_directory().to_owned(),
        program,
        capacity: config.sandboxes.capacity,
        pool: PoolSize {
            least: config.sandboxes.pool_min,
            most: config.sandboxes.pool_max.min(config.sandboxes.capacity),
        },
        default_ttl: config.sandboxes.default_ttl,
        ttl_max: config.sandboxes.ttl_max,
        allow_host_network: config.sandboxes.allow_host_network,
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

/// The certificate that is shown; `None` where TLS is not spoken.
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

/// An address that can be opened. One that stands for all of the host's can't, and this machine is one of them.
fn reachable(address: SocketAddr) -> String {
    if address.ip().is_unspecified() { format!("localhost:{}", address.port()) } else { address.to_string() }
}

/// What E2B's users know as the first thing to do, for a shell.
const E2B_EXAMPLE: &str = r#"python3 <<'END'
from e2b import Sandbox
sandbox = Sandbox.create()
print(sandbox.commands.run("echo hello").stdout)
sandbox.kill()
END
"#;

/// Says where the server is, and how to talk to it. Programs wait for the line that begins with `listening`.
fn announce(url: &str, config: &Config, secret: Option<&KeySecret>, fingerprint: Option<&str>) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let curl = format!("  curl -s {}-X POST {url}/api/v1/sandboxes", if fingerprint.is_some() { "-k " } else { "" });
    match (secret, config.listen.auth) {
        (Some(secret), _) => {
            let key = secret.expose();
            writeln!(out, "API key (shown this once): {key}\n\nTry it:\n\n{curl} -H 'Authorization: Bearer {key}'\n")?;
        }
        (None, Auth::Off) => writeln!(out, "No key is asked for. Try it:\n\n{curl}\n")?,
        (None, Auth::Keys) => {}
    }
    let key = match (secret.and_then(|secret| spelling::spelled(secret.expose())), config.listen.auth) {
        (Some(key), _) => key,
        // Clients want one, and nobody looks at it.
        (None, Auth::Off) => "e2b_00".to_owned(),
        (None, Auth::Keys) => "YOUR_KEY".to_owned(),
    };
    // From the first column on, so that it can be pasted as it is.
    writeln!(out, "With E2B's clients, unchanged (pip install e2b):\n")?;
    writeln!(out, "export E2B_API_URL={url} E2B_SANDBOX_URL={url} E2B_API_KEY={key}")?;
    if let Some(certificate) = certificate(config).as_ref().and_then(tls::self_made_certificate) {
        let path = certificate.display();
        writeln!(out, "export SSL_CERT_FILE={path} NODE_EXTRA_CA_CERTS={path}")?;
    }
    writeln!(out, "{E2B_EXAMPLE}")?;
    if let Some(fingerprint) = fingerprint {
        writeln!(out, "certificate SHA-256 {fingerprint}")?;
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
        }
    }
}
