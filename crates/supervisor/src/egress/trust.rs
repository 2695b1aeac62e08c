//! Where programs inside look for certificates: the session's own authority is added there.
//!
//! The smallest set of places that covers the usual clients. OpenSSL, GnuTLS and everything built on them read the bundle;
//! `SSL_CERT_FILE`, `REQUESTS_CA_BUNDLE` and `NODE_EXTRA_CA_CERTS` (see [`crate::Program`]) reach the rest.
//! Programs with built-in roots trust nothing that is added; for them a host must be allowed without method or path
//! rules.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::io::Errno;
use saggar_domain::Template;
use saggar_jail::Op;

use super::TRUST_BUNDLES;
use crate::program::{TRUST_BUNDLE, TRUST_OWN};

/// The directory of the host's /etc that isn't shown in a proxied sandbox: it is replaced by a private one.
pub const REPLACED: &str = "ssl/certs";
/// A setting of the operator: the certificates to trust for servers outside.
pub const BUNDLE_VARIABLE: &str = "SSL_CERT_FILE";
/// Larger than any bundle in use.
const BUNDLE_MAX: u64 = 4 << 20;

/// Where Debian's `update-ca-certificates` finds what to add. Installing its package in an image writes the bundle anew.
pub const TRUST_ADDED: &str = "/usr/local/share/ca-certificates/saggar-egress.crt";

/// The files, for the private root. They are empty until a session is ready: the root is built while the egress process starts.
pub fn trust_files(template: &Template) -> Vec<Op> {
    let paths: &[&str] = match template {
        Template::Host => &[TRUST_BUNDLE, TRUST_OWN],
        Template::Image(_) => &[TRUST_BUNDLE, TRUST_OWN, TRUST_ADDED],
    };
    let mut ops = Vec::new();
    let mut made = None;
    for path in paths {
        let (directory, name) = path.trim_start_matches('/').rsplit_once('/').unwrap_or(("", path));
        // An image may have a link there, which is followed.
        if *template == Template::Host && made.replace(directory) != Some(directory) {
            ops.push(Op::Directory { path: directory.to_owned(), mode: 0o755, owner: 0 });
        }
        ops.push(Op::Kept { directory: directory.to_owned(), name: name.to_owned(), bytes: Vec::new() });
    }
    ops
}

/// What a sandbox has to trust.
#[derive(Clone, Debug)]
pub(super) struct Trust {
    ca_pem: String,
}

impl Trust {
    pub(super) fn new(ca_pem: String) -> Self {
        Self { ca_pem }
    }

    /// Of the bundle, and of the two files with our authority alone.
    fn contents(&self) -> [Vec<u8>; 3] {
        let mut bundle = host_bundle();
        if !bundle.is_empty() && !bundle.ends_with(b"\n") {
            bundle.push(b'\n');
        }
        bundle.extend_from_slice(self.ca_pem.as_bytes());
        let own = self.ca_pem.clone().into_bytes();
        [bundle, own.clone(), own]
    }
}

/// The files of [`trust_files`] in a sandbox that runs, in the same order. A program that reads one while it is replaced sees the part
/// that doesn't change, and the authority before or after.
#[derive(Debug)]
pub(super) struct TrustFiles(pub(super) Vec<OwnedFd>);

impl TrustFiles {
    pub(super) fn replace(&self, trust: &Trust) -> Result<(), Errno> {
        for (file, bytes) in self.0.iter().zip(trust.contents()) {
            let mut written = 0;
            while written < bytes.len() {
                written += rustix::io::pwrite(file, &bytes[written..], written as u64)?;
            }
            rustix::fs::ftruncate(file, bytes.len() as u64)?;
        }
        Ok(())
    }
}

/// Without a bundle the sandbox trusts only its own authority: inspected hosts work, others don't.
pub fn host_bundle() -> Vec<u8> {
    let named = std::env::var_os(BUNDLE_VARIABLE).map(PathBuf::from);
    let mut known = named.into_iter().chain(TRUST_BUNDLES.iter().map(PathBuf::from));
    let is_small =
        |path: &PathBuf| std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.len() <= BUNDLE_MAX);
    known.find(is_small).and_then(|path| std::fs::read(path).ok()).unwrap_or_default()
}
