//! Connections: HTTP/1 and HTTP/2, plain or TLS 1.3, pooled.
//!
//! It uses hyper directly instead of reqwest: the server depends on hyper anyway, and this API doesn't need reqwest's
//! additions (cookies, redirects, proxies). Upgrades to WebSockets exist only in HTTP/1, so they have their own pool
//! that offers nothing else.

use std::io;
use std::sync::Arc;

use hyper::body::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::body::Body;
use super::dial::{Dialer, socket_of};
use super::error::Error;
use super::options::ClientOptions;

type Connections<B> = Pool<HttpsConnector<Dialer>, B>;

/// The two connection pools.
#[derive(Debug)]
pub(crate) struct Pools {
    pub(crate) calls: Connections<Body>,
    pub(crate) upgrades: Connections<http_body_util::Empty<Bytes>>,
}

impl Pools {
    pub(crate) fn new(options: &ClientOptions) -> Result<Self, Error> {
        let tls = tls(options)?;
        let builder = |tls: ClientConfig| HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let calls = builder(tls.clone()).enable_http1().enable_http2().wrap_connector(dialer(options));
        let upgrades = builder(tls).enable_http1().wrap_connector(dialer(options));
        let mut pool = Pool::builder(TokioExecutor::new());
        pool.pool_timer(TokioTimer::new()).timer(TokioTimer::new());
        Ok(Self { calls: pool.build(calls), upgrades: pool.build(upgrades) })
    }
}

fn dialer(options: &ClientOptions) -> Dialer {
    if let Some(path) = socket_of(&options.url) {
        return Dialer::Unix(path);
    }
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(options.connect_timeout));
    Dialer::Tcp(connector)
}

fn tls(options: &ClientOptions) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    // Reading the host's certificates takes milliseconds, which a plain connection doesn't need.
    if options.url.starts_with("https://") {
        for certificate in CertificateDer::pem_slice_iter(&options.certificates) {
            let certificate = certificate.map_err(|error| Error::Certificates(error.to_string()))?;
            roots.add(certificate).map_err(|error| Error::Certificates(error.to_string()))?;
        }
        if roots.is_empty() && !options.certificates.is_empty() {
            return Err(Error::Certificates("no certificate in it".to_owned()));
        }
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(Error::Certificates("none on this host, and none given".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Certificates(error.to_string()))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// Classifies a failed request by whether it was sent.
pub(crate) fn failure(error: hyper_util::client::legacy::Error, url: &str) -> Error {
    let (is_connect, url) = (error.is_connect(), url.to_owned());
    match tls_error(&error).filter(|_| is_connect) {
        // The handshake was answered with something other than TLS, or by one of our servers without TLS, which sends an
        // alert.
        Some(
            rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)
            | rustls::Error::AlertReceived(rustls::AlertDescription::ProtocolVersion),
        ) => Error::PlainHttp { url },
        Some(rustls::Error::InvalidCertificate(fault)) => Error::Untrusted { url, fault: fault.into() },
        Some(_) | None if is_connect => Error::Connect { url, source: root_cause(error) },
        Some(_) | None => Error::Broken { doing: "asking", source: root_cause(error) },
    }
}

/// The error of a TLS handshake, if there is one below.
fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    let mut below = Some(error);
    while let Some(cause) = below {
        // An `io::Error` hides the error it wraps: its source is what is below that.
        let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let wrapped = wrapped.map(|inner| inner as &(dyn std::error::Error + 'static));
        let found = [Some(cause), wrapped].into_iter().flatten().find_map(|seen| seen.downcast_ref::<rustls::Error>());
        if found.is_some() {
            return found;
        }
        below = wrapped.filter(|inner| inner.is::<io::Error>()).or_else(|| cause.source());
    }
    None
}

/// Whether the connection was refused.
pub(crate) fn is_refused(error: &Error) -> bool {
    matches!(error, Error::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
}

/// The operating system's own error, if there is one below; the layers above only say "error".
fn root_cause(error: impl std::error::Error + Send + Sync + 'static) -> io::Error {
    let mut below: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    let mut last = error.to_string();
    while let Some(cause) = below {
        if let Some(cause) = cause.downcast_ref::<io::Error>() {
            return match cause.get_ref() {
                // An error that wraps another has a less specific kind.
                Some(inner) if inner.is::<io::Error>() => {
                    below = Some(inner);
                    continue;
                }
                Some(inner) => io::Error::new(cause.kind(), inner.to_string()),
                None => cause.raw_os_error().map_or_else(|| cause.kind().into(), io::Error::from_raw_os_error),
            };
        }
        last = cause.to_string();
        below = cause.source();
    }
    io::Error::other(last)
}
