//! TLS with the operator's certificate, or with a self-signed one.
//!
//! A self-signed certificate is kept in the data directory, so that a client can pin it; its fingerprint is printed
//! at the start. It only proves that the server is the same as last time.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use tokio_rustls::TlsAcceptor;

use saggar_given::{GivenFileError, read_given_file};

/// File name of the self-signed certificate in the data directory.
const CERTIFICATE: &str = "tls-certificate.pem";
const KEY: &str = "tls-key.pem";

/// Files of a data directory that a backup of its store does not include.
pub fn files_beside_the_store(data_directory: &Path) -> Vec<&'static str> {
    let files = [saggar_runtime::SIGNING_KEY, CERTIFICATE, KEY];
    files.into_iter().filter(|name| data_directory.join(name).exists()).collect()
}

/// Maximum size of a certificate chain.
const PEM_LEN_MAX: u64 = 1 << 20;

/// Why TLS can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file can't be used.
    #[error("the {what} {source}")]
    File {
        what: &'static str,
        #[source]
        source: GivenFileError,
    },
    /// A file has invalid contents.
    #[error("the {what} is invalid")]
    Read {
        what: &'static str,
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// The two don't match, or are of an unsupported kind.
    #[error("the certificate and its key can't be used")]
    Unusable(#[from] rustls::Error),
    #[error("a certificate can't be created")]
    Make(#[from] rcgen::Error),
    #[error("a certificate can't be written to the data directory")]
    Write(#[source] io::Error),
}

/// The server's certificate.
#[derive(Clone, Debug)]
pub enum Certificate {
    /// The operator's certificate and its key.
    Given { certificate: PathBuf, key: PathBuf },
    /// A self-signed one in the data directory, for these names.
    SelfMade { data_directory: PathBuf, names: Vec<String> },
}

/// The TLS acceptor, and the fingerprint of the certificate.
pub fn acceptor(certificate: &Certificate) -> Result<(TlsAcceptor, String), TlsError> {
    let (certificate, key) = match certificate {
        Certificate::Given { certificate, key } => (certificate.clone(), key.clone()),
        Certificate::SelfMade { data_directory, names } => self_made(data_directory, names)?,
    };
    let pem = |what: &'static str, path: &Path| {
        read_given_file(path, PEM_LEN_MAX).map_err(|source| TlsError::File { what, source })
    };
    let chain = CertificateDer::pem_slice_iter(&pem("certificate", &certificate)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| TlsError::Read { what: "certificate", source })?;
    let key = PrivateKeyDer::from_pem_slice(&pem("certificate's key", &key)?)
        .map_err(|source| TlsError::Read { what: "certificate's key", source })?;
    let fingerprint = chain.first().map(fingerprint).unwrap_or_default();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((TlsAcceptor::from(Arc::new(server)), fingerprint))
}

/// The certificate that clients have to trust explicitly; `None` if the operator's is used.
pub fn self_made_certificate(certificate: &Certificate) -> Option<PathBuf> {
    match certificate {
        Certificate::Given { .. } => None,
        Certificate::SelfMade { data_directory, .. } => Some(data_directory.join(CERTIFICATE)),
    }
}

/// The certificate of an earlier start, or a new one.
fn self_made(data_directory: &Path, names: &[String]) -> Result<(PathBuf, PathBuf), TlsError> {
    let (certificate, key) = (data_directory.join(CERTIFICATE), data_directory.join(KEY));
    if certificate.exists() && key.exists() {
        return Ok((certificate, key));
    }
    let mut names = names.to_vec();
    names.dedup();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "saggar");
    let pair = KeyPair::generate()?;
    let made = params.self_signed(&pair)?;
    // The key first: an existing certificate then always has its key.
    write(&key, pair.serialize_pem().as_bytes()).map_err(TlsError::Write)?;
    write(&certificate, made.pem().as_bytes()).map_err(TlsError::Write)?;
    Ok((certificate, key))
}

/// Written under a temporary name first, so that an existing file is complete and private from the start.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    io::Write::write_all(&mut file, bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)
}

fn fingerprint(certificate: &CertificateDer<'_>) -> String {
    let digest = Sha256::digest(certificate);
    digest.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":")
}
