//! TLS with the certificates that this host trusts.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use saggar_domain::{Code, Problem};

use super::dial::Connection;

/// The trusted certificates, read once per import.
#[derive(Clone)]
pub(super) struct Trust(Arc<ClientConfig>);

impl Trust {
    pub(super) fn of_the_host() -> Result<Self, Problem> {
        let fail = |why: String| {
            Problem::new(
                Code::Stream,
                format!("TLS can't be used: {why}"),
                "install the package ca-certificates, or name a file of certificates in SSL_CERT_FILE",
            )
        };
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        // Single certificates that can't be read are common on old hosts, and are left out.
        roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            return Err(fail("this host trusts no certificate".into()));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| fail(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    /// The handshake happens with the first byte that is sent.
    pub(super) fn wrap(&self, connection: Box<dyn Connection>, host: &str) -> Result<Box<dyn Connection>, Problem> {
        let fail = |why: String| {
            Problem::new(Code::Stream, format!("{host} can't be reached over TLS: {why}"), "check the registry's name")
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| fail(error.to_string()))?;
        let client = ClientConnection::new(Arc::clone(&self.0), name).map_err(|error| fail(error.to_string()))?;
        Ok(Box::new(StreamOwned::new(client, connection)))
    }
}
