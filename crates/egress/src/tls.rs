//! TLS on both sides of an inspected connection.
//!
//! Towards the sandbox we are the host, with a leaf of the session's CA. Towards the server we are a strict client: a
//! certificate that the sandbox's program would have refused never becomes one that it accepts.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use saggar_domain::net::{Destination, Host, Refusal};
use saggar_supervisor::egress::TRUST_BUNDLES;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use crate::session::{Shared, UpstreamTls};

/// Sessions that a sandbox may resume with servers.
const RESUMABLE: usize = 64;

/// The operator's choice of what to trust.
const BUNDLE_VARIABLE: &str = "SSL_CERT_FILE";

/// The certificates that a host trusts. They are parsed when the first server has to be verified: that takes longer than everything
/// else that a session begins with, and many sandboxes never get there.
#[derive(Clone)]
pub struct Roots {
    store: Arc<Store>,
    provider: Arc<CryptoProvider>,
}

type Store = LazyLock<Arc<RootCertStore>, Box<dyn FnOnce() -> Arc<RootCertStore> + Send>>;

impl Roots {
    /// From a bundle of PEM certificates. Those that can't be used are left out, as other programs do. Without any, no server
    /// is trusted.
    pub fn from_pem(pem: Vec<u8>) -> Self {
        let parse = move || {
            let mut store = RootCertStore::empty();
            store.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
            Arc::new(store)
        };
        let store: Store = LazyLock::new(Box::new(parse));
        Self { store: Arc::new(store), provider: Arc::new(rustls::crypto::ring::default_provider()) }
    }

    pub fn of_the_host() -> Self {
        Self::from_pem(host_bundle())
    }

    pub(crate) fn provider(&self) -> &Arc<CryptoProvider> {
        &self.provider
    }
}

/// The bundle that the host trusts. Without any, no server with TLS is trusted.
pub(crate) fn host_bundle() -> Vec<u8> {
    match std::env::var_os(BUNDLE_VARIABLE) {
        Some(path) => std::fs::read(path).unwrap_or_default(),
        None => TRUST_BUNDLES.iter().find_map(|path| std::fs::read(path).ok()).unwrap_or_default(),
    }
}

pub(crate) fn client_configs(roots: &Roots) -> Result<UpstreamTls, rustls::Error> {
    let mut http1 = ClientConfig::builder_with_provider(Arc::clone(&roots.provider))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(Arc::clone(&**roots.store))
        .with_no_client_auth();
    // Of this session alone, so that no server can link two sandboxes by it.
    http1.resumption = Resumption::in_memory_sessions(RESUMABLE);
    let mut both = http1.clone();
    both.resumption = Resumption::in_memory_sessions(RESUMABLE);
    http1.alpn_protocols = vec![b"http/1.1".to_vec()];
    both.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(UpstreamTls { http1: Arc::new(http1), http1_and_2: Arc::new(both) })
}

/// Becomes `host` towards the sandbox.
pub(crate) async fn accept<S>(session: &Shared, stream: S, host: &Host) -> Result<server::TlsStream<S>, String>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let config = session.ca.server(host).map_err(|error| format!("no certificate for {host}: {error}"))?;
    match timeout(session.limits.handshake_time, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(format!(
            "the program's TLS handshake failed ({error}); it may not trust the sandbox's certificate authority"
        )),
        Err(_elapsed) => Err("the program's TLS handshake took too long".to_owned()),
    }
}

pub(crate) async fn connect(
    config: &Arc<ClientConfig>,
    to: &Destination,
    stream: TcpStream,
) -> Result<client::TlsStream<TcpStream>, Refusal> {
    let name = match &to.host {
        Host::Name(name) => ServerName::try_from(name.as_str().to_owned()).ok(),
        Host::V4(address) => Some(ServerName::from(IpAddr::V4(*address))),
        Host::V6(address) => Some(ServerName::from(IpAddr::V6(*address))),
    };
    let Some(name) = name else {
        return Err(failure(to, "its name can't be in a certificate", "use another name"));
    };
    TlsConnector::from(Arc::clone(config)).connect(name, stream).await.map_err(|error| {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls {
            Some(rustls::Error::InvalidCertificate(certificate)) => certificate_failure(to, certificate),
            Some(other) => failure(to, &format!("TLS failed: {other}"), "check the server's TLS settings"),
            None => {
                failure(to, &format!("the connection failed during the TLS handshake: {}", error.kind()), "try again")
            }
        }
    })
}

fn certificate_failure(to: &Destination, error: &CertificateError) -> Refusal {
    let (what, help) = match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            ("its certificate has expired", "renew the server's certificate")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            ("its certificate is not valid yet", "check the clocks of server and host")
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            ("its certificate is for another name", "use a name that the certificate has")
        }
        CertificateError::UnknownIssuer => (
            "its certificate is signed by an issuer that this host does not trust",
            "add the issuer to the host's trusted certificates, and restart",
        ),
        CertificateError::Revoked => ("its certificate is revoked", "replace the server's certificate"),
        other => {
            return failure(
                to,
                &format!("its certificate is not acceptable: {other}"),
                "check the server's certificate",
            );
        }
    };
    failure(to, what, help)
}

fn failure(to: &Destination, what: &str, help: &str) -> Refusal {
    Refusal::new("egress/upstream-tls", format!("{to} can't be trusted: {what}"), help)
}
