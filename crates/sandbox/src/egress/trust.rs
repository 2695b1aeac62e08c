//! Where programs inside look for certificates: the session's own authority is added there.
//!
//! The smallest set of places that covers the usual clients. OpenSSL, GnuTLS and everything built on them read the bundle;
//! `SSL_CERT_FILE`, `REQUESTS_CA_BUNDLE` and `NODE_EXTRA_CA_CERTS` (see `saggar_supervisor::Program`) reach the rest.
//! Programs with built-in roots trust nothing that is added; for them a host must be allowed without method or path
//! rules.

use std::path::PathBuf;

use saggar_jail::Op;
use saggar_supervisor::egress::TRUST_BUNDLES;

/// The directory of the host that isn't shown in a proxied sandbox: it is replaced by a private one.
pub(crate) const REPLACED: &str = "ssl/certs";
/// Larger than any bundle in use.
const BUNDLE_MAX: u64 = 4 << 20;

/// What a sandbox has to trust.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    ca_pem: String,
}

impl Trust {
    pub(super) fn new(ca_pem: String) -> Self {
        Self { ca_pem }
    }

    /// The files, for the private root.
    pub(crate) fn ops(&self) -> Vec<Op> {
        let mut bundle = host_bundle();
        if !bundle.is_empty() && !bundle.ends_with(b"\n") {
            bundle.push(b'\n');
        }
        bundle.extend_from_slice(self.ca_pem.as_bytes());
        let directory = format!("etc/{REPLACED}");
        let file = |path: &str, bytes: Vec<u8>| Op::File { path: path.trim_start_matches('/').to_owned(), bytes };
        vec![
            Op::Directory { path: directory, mode: 0o755, owner: 0 },
            file(saggar_supervisor::TRUST_BUNDLE, bundle),
            file(saggar_supervisor::TRUST_OWN, self.ca_pem.clone().into_bytes()),
        ]
    }
}

/// Without a bundle the sandbox trusts only its own authority: inspected hosts work, others don't.
fn host_bundle() -> Vec<u8> {
    let named = std::env::var_os(super::PASSED_ON[0]).map(PathBuf::from);
    let mut known = named.into_iter().chain(TRUST_BUNDLES.iter().map(PathBuf::from));
    let is_small =
        |path: &PathBuf| std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= BUNDLE_MAX);
    known.find(is_small).and_then(|path| std::fs::read(path).ok()).unwrap_or_default()
}
