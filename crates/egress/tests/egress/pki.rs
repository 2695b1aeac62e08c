//! Certificates of the world's servers: an authority that the session trusts, and servers that deserve no trust.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

pub struct Pki {
    issuer: Issuer<'static, KeyPair>,
    pub roots_pem: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    Good,
    Expired,
    NotYet,
    WrongName,
    SelfSigned,
}

impl Pki {
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "the world's authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let roots_pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), roots_pem }
    }

    pub fn server(&self, host: &str, trust: Trust, alpn: &[&str]) -> Arc<ServerConfig> {
        let name = if trust == Trust::WrongName { "another.test" } else { host };
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let date = rcgen::date_time_ymd;
        (params.not_before, params.not_after) = match trust {
            Trust::Expired => (date(2001, 1, 1), date(2002, 1, 1)),
            Trust::NotYet => (date(2190, 1, 1), date(2191, 1, 1)),
            Trust::Good | Trust::WrongName | Trust::SelfSigned => (date(2001, 1, 1), date(2190, 1, 1)),
        };
        let key = KeyPair::generate().unwrap();
        let certificate = match trust {
            Trust::SelfSigned => params.self_signed(&key),
            _ => params.signed_by(&key, &self.issuer),
        };
        let chain: Vec<CertificateDer<'static>> = vec![certificate.unwrap().der().clone()];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}
