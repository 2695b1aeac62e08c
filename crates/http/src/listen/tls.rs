//! TLS with the operator's certificate, or with a self-signed one.
//!
//! A self-signed certificate is kept in the data directory, so that a client can pin it; its fingerprint is printed
//! at the start. It only proves that the server is the same as last time.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, RootCertStore, ServerConfig};
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
    #[error("the certificate's file has no certificate in it")]
    NoCertificate,
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

/// TLS, ready to use.
pub struct Tls {
    pub acceptor: TlsAcceptor,
    /// SHA-256 of the certificate.
    pub fingerprint: String,
    /// The file with the certificate.
    pub path: PathBuf,
    end_entity: CertificateDer<'static>,
}

impl Tls {
    pub fn open(certificate: &Certificate) -> Result<Self, TlsError> {
        let (path, chain, key) = read(certificate)?;
        let end_entity = chain.first().cloned().ok_or(TlsError::NoCertificate)?;
        let fingerprint = fingerprint(&end_entity);
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(server)), fingerprint, path, end_entity })
    }

    /// Why clients that verify certificates strictly, ours included, refuse this one whatever they trust; and the remedy.
    pub fn objection(&self) -> Option<&'static str> {
        let Err(error) = self.verify_against_itself() else { return self.names_objection() };
        // The verifier's own type is not part of rustls' interface.
        match error {
            rustls::Error::InvalidCertificate(fault) if format!("{fault:?}").contains("CaUsedAsEndEntity") => {
                Some("it is marked as an authority (CA:TRUE); make it with basicConstraints=CA:FALSE")
            }
            _ => self.names_objection(),
        }
    }

    fn names_objection(&self) -> Option<&'static str> {
        let fault = self.verify_name("localhost").err()?;
        let has_none = matches!(
            &fault,
            rustls::Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. })
                if presented.is_empty()
        );
        has_none
            .then_some("it has no subjectAltName; make it with subjectAltName=DNS:localhost,IP:127.0.0.1, or its names")
    }

    /// Whether a client that trusts the certificate itself can verify it under this name.
    pub fn is_trustable_as(&self, host: &str) -> bool {
        self.verify_against_itself().is_ok() && self.verify_name(host).is_ok()
    }

    fn verify_against_itself(&self) -> Result<(), rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(self.end_entity.clone())?;
        let parsed = ParsedCertificate::try_from(&self.end_entity)?;
        let algorithms = provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], UnixTime::now(), algorithms)
    }

    fn verify_name(&self, host: &str) -> Result<(), rustls::Error> {
        let host = host.trim_matches(['[', ']']);
        let name = ServerName::try_from(host).map_err(|_| rustls::Error::General("not a name".to_owned()))?;
        verify_server_name(&ParsedCertificate::try_from(&self.end_entity)?, &name)
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

type Read = (PathBuf, Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn read(certificate: &Certificate) -> Result<Read, TlsError> {
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
    Ok((certificate, chain, key))
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

#[cfg(test)]
mod tests {
    use rcgen::{BasicConstraints, IsCa};

    use super::*;

    #[test]
    fn a_certificate_that_strict_clients_refuse_is_told_of() {
        let directory = std::env::temp_dir().join(format!("saggar-tls-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let open = |names: &[&str], is_ca: IsCa| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            let mut params = CertificateParams::new(names).unwrap();
            params.is_ca = is_ca;
            let pair = KeyPair::generate().unwrap();
            let (certificate, key) = (directory.join("c.pem"), directory.join("k.pem"));
            std::fs::write(&certificate, params.self_signed(&pair).unwrap().pem()).unwrap();
            std::fs::write(&key, pair.serialize_pem()).unwrap();
            Tls::open(&Certificate::Given { certificate, key }).unwrap()
        };
        let fine = open(&["example.com", "127.0.0.1"], IsCa::ExplicitNoCa);
        assert_eq!(fine.objection(), None);
        let hosts = ["example.com", "127.0.0.1", "localhost", "[::1]"];
        assert_eq!(hosts.map(|host| fine.is_trustable_as(host)), [true, true, false, false]);
        let authority = open(&["localhost"], IsCa::Ca(BasicConstraints::Unconstrained));
        assert!(authority.objection().unwrap().contains("CA:TRUE") && !authority.is_trustable_as("localhost"));
        assert!(open(&[], IsCa::NoCa).objection().unwrap().contains("subjectAltName"));
        let names = vec!["localhost".to_owned()];
        let own = Tls::open(&Certificate::SelfMade { data_directory: directory.clone(), names }).unwrap();
        assert!(own.objection().is_none() && own.is_trustable_as("localhost"));
        // A key where the certificate should be.
        let key = directory.join("k.pem");
        let swapped = Tls::open(&Certificate::Given { certificate: key.clone(), key });
        assert!(matches!(swapped, Err(TlsError::NoCertificate)));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
