//! The certificate authority of one session: it signs for the hosts that this sandbox dials, and nothing else trusts it.
//!
//! It has no name constraints, because the refusal page of a denied name needs a certificate, too. What limits it instead: its
//! key is made here, never leaves this process's memory, and ends with the session.
//!
//! All leaves share one key, which makes a new one cheap. They live for two days and are replaced after one, so a session may
//! last longer than any of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType, SerialNumber,
};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::server::NoServerSessionStorage;
use rustls::sign::{CertifiedKey, SigningKey, SingleCertAndKey};
use saggar_domain::net::Host;
use time::OffsetDateTime;

/// Leaves kept for the next connection to their host.
const LEAVES_MAX: usize = 256;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Before the present, for clients with a clock that is behind.
const BACKDATED: Duration = DAY;
const LEAF_LIFE: Duration = DAY.saturating_mul(2);
const LEAF_RENEWED_AFTER: Duration = DAY;
/// A session may last long, and its key ends with it.
const CA_LIFE: Duration = DAY.saturating_mul(3650);
/// RFC 5280 limits the common name to 64 characters.
const COMMON_NAME_MAX: usize = 64;

#[derive(Debug, thiserror::Error)]
pub enum CaError {
    #[error("making a certificate")]
    Make(#[from] rcgen::Error),
    #[error("preparing TLS for a certificate")]
    Tls(#[from] rustls::Error),
    #[error("no random numbers")]
    Random,
}

pub(crate) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    leaf_key: KeyPair,
    signing: Arc<dyn SigningKey>,
    provider: Arc<CryptoProvider>,
    leaves: Mutex<HashMap<Host, Leaf>>,
}

struct Leaf {
    config: Arc<ServerConfig>,
    made: SystemTime,
    used: SystemTime,
}

impl Ca {
    pub fn new(provider: Arc<CryptoProvider>) -> Result<Self, CaError> {
        let key = KeyPair::generate()?;
        let serial = random_serial(&provider)?;
        let mut params = CertificateParams::default();
        // Part of the serial number makes the name unique: some clients refuse two issuers with the same name.
        params.distinguished_name =
            named(&format!("Saggar sandbox CA {:02x}{:02x}{:02x}{:02x}", serial[1], serial[2], serial[3], serial[4]));
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        valid_for(&mut params, CA_LIFE);
        let pem = params.self_signed(&key)?.pem();
        let leaf_key = KeyPair::generate()?;
        let signing =
            provider.key_provider.load_private_key(PrivatePkcs8KeyDer::from(leaf_key.serialize_der()).into())?;
        Ok(Self { issuer: Issuer::new(params, key), pem, leaf_key, signing, provider, leaves: Mutex::default() })
    }

    /// The certificate that the sandbox trusts. The key has no way out.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// What a TLS server needs to be `host` towards the sandbox.
    pub fn server(&self, host: &Host) -> Result<Arc<ServerConfig>, CaError> {
        let now = SystemTime::now();
        if let Some(leaf) = self.lock().get_mut(host)
            && now.duration_since(leaf.made).is_ok_and(|age| age < LEAF_RENEWED_AFTER)
        {
            leaf.used = now;
            return Ok(Arc::clone(&leaf.config));
        }
        // Made without the lock: other connections go on meanwhile. Two at once for one host are harmless.
        let config = Arc::new(self.make(host)?);
        let mut leaves = self.lock();
        if leaves.len() >= LEAVES_MAX
            && !leaves.contains_key(host)
            && let Some(oldest) = leaves.iter().min_by_key(|(_, leaf)| leaf.used).map(|(host, _)| host.clone())
        {
            leaves.remove(&oldest);
        }
        leaves.insert(host.clone(), Leaf { config: Arc::clone(&config), made: now, used: now });
        Ok(config)
    }

    fn make(&self, host: &Host) -> Result<ServerConfig, CaError> {
        let mut params = CertificateParams::default();
        let text = host.to_string();
        params.subject_alt_names = vec![match host.address() {
            Some(address) => SanType::IpAddress(address),
            None => SanType::DnsName(text.as_str().try_into()?),
        }];
        // Python and Java want a subject. A name that is too long for one is in the list of names anyway.
        params.distinguished_name = named(if text.len() <= COMMON_NAME_MAX { &text } else { "Saggar" });
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.is_ca = IsCa::ExplicitNoCa;
        // The leaves share a key, from which the number would otherwise be derived; two certificates of one issuer must
        // not share a number.
        params.serial_number = Some(SerialNumber::from_slice(&random_serial(&self.provider)?));
        valid_for(&mut params, LEAF_LIFE);
        let certificate = params.signed_by(&self.leaf_key, &self.issuer)?;
        let certified = CertifiedKey::new(vec![certificate.der().clone()], Arc::clone(&self.signing));
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        // Resumption would keep state for each client; a handshake on the same machine is cheap.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Host, Leaf>> {
        self.leaves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn named(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

fn valid_for(params: &mut CertificateParams, life: Duration) {
    // Whole seconds: a certificate has no finer ones.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let now =
        OffsetDateTime::from_unix_timestamp(i64::try_from(now).unwrap_or(0)).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    params.not_before = now - BACKDATED;
    params.not_after = now + life;
}

/// A positive number without leading zeros, as DER wants it.
fn random_serial(provider: &CryptoProvider) -> Result<[u8; 16], CaError> {
    let mut serial = [0; 16];
    provider.secure_random.fill(&mut serial).map_err(|_| CaError::Random)?;
    serial[0] = serial[0] & 0x7f | 0x40;
    Ok(serial)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ca() -> Ca {
        Ca::new(Arc::new(rustls::crypto::ring::default_provider())).unwrap()
    }

    #[test]
    fn a_leaf_is_reused_for_its_host() {
        let (ca, host) = (ca(), Host::parse(b"a.test").unwrap());
        assert!(Arc::ptr_eq(&ca.server(&host).unwrap(), &ca.server(&host).unwrap()));
    }

    #[test]
    fn the_kept_leaves_are_bounded_and_the_longest_unused_goes_first() {
        let ca = ca();
        let host = |number: usize| Host::parse(format!("h{number}.test").as_bytes()).unwrap();
        let first = ca.server(&host(0)).unwrap();
        for number in 1..LEAVES_MAX {
            ca.server(&host(number)).unwrap();
        }
        assert!(Arc::ptr_eq(&first, &ca.server(&host(0)).unwrap()));
        ca.server(&host(LEAVES_MAX)).unwrap();
        let leaves = ca.lock();
        assert_eq!(leaves.len(), LEAVES_MAX);
        assert!(leaves.contains_key(&host(0)) && !leaves.contains_key(&host(1)));
    }

    #[test]
    fn every_host_can_be_served_even_an_address_and_a_very_long_name() {
        let ca = ca();
        let long = format!("{}.{}.test", "a".repeat(63), "b".repeat(63));
        for host in ["203.0.113.7", "2001:db8::1", &long] {
            ca.server(&Host::parse(host.as_bytes()).unwrap()).unwrap();
        }
    }
}
