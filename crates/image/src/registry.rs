//! Fetches images from a registry, by the OCI distribution protocol: manifests and blobs, with a token if one is asked for.
//!
//! Everything that a registry answers is bounded and compared with a digest, except the manifest of a tag. Credentials
//! go to the registry and to its token service alone, over TLS; a redirect never carries them to another host.

mod challenge;
mod client;
mod dial;
mod http;
mod pace;
mod trust;
mod url;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::secret::Binding;
use zeroize::Zeroizing;

pub(crate) use client::Registry;
pub use dial::{Connection, Dial, Dialled, Direct, Reach};
pub use pace::Pace;

/// How long a registry may be silent.
const PATIENCE: Duration = Duration::from_secs(30);

/// How to reach a registry.
#[derive(Clone)]
pub struct RegistryOptions {
    pub credentials: Option<Credentials>,
    /// Without TLS; only a registry on a loopback address is used that way.
    pub is_plain_http: bool,
    pub dialer: Arc<dyn Dial>,
    /// How slow it may be.
    pub pace: Pace,
}

impl Default for RegistryOptions {
    fn default() -> Self {
        Self { credentials: None, is_plain_http: false, dialer: Arc::new(Direct::new(PATIENCE)), pace: Pace::default() }
    }
}

/// A user of a registry.
#[derive(Clone)]
pub struct Credentials {
    pub username: String,
    pub password: Zeroizing<String>,
    /// Where they may go, if that is said: nowhere else, and only over TLS.
    pub bound_to: Option<Binding>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?}, …)", self.username)
    }
}
