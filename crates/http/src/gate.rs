//! The state that every request needs, for both APIs.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use saggar_domain::ByteSize;
use saggar_runtime::{Sandboxes, Subject};
use tokio::sync::watch;

use crate::access::keys::Keys;
use crate::request::context::UnderWay;

/// The gate, shared by handlers. An API's state provides it with `FromRef`, so that extractors find it.
pub type Shared = Arc<Gate>;

/// The sandboxes, with authentication and the shared settings.
#[derive(Debug)]
pub struct Gate {
    pub sandboxes: Sandboxes,
    pub keys: Keys,
    pub settings: GateSettings,
    /// The number of concurrent requests of each key.
    pub(crate) under_way: UnderWay,
    /// The subject of every request, if keys are disabled.
    pub(crate) everybody: Option<Subject>,
    /// Default limits that this host can't enforce, known once a sandbox has reported them.
    unenforced: OnceLock<Vec<String>>,
    /// Becomes true when the server is told to stop.
    stopping: watch::Receiver<bool>,
}

/// The settings that both APIs use.
#[derive(Clone, Debug)]
pub struct GateSettings {
    pub tls: bool,
    /// Domain of the sandboxes' ports: `{port}-{sandbox}.DOMAIN`.
    pub domain: String,
    pub default_ttl: Duration,
    pub upload_max: ByteSize,
    pub requests_per_key: usize,
}

impl Gate {
    /// `everybody` is the subject of every request if keys are disabled.
    pub fn new(
        sandboxes: Sandboxes,
        settings: GateSettings,
        everybody: Option<Subject>,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        Self {
            sandboxes,
            keys: Keys::default(),
            under_way: UnderWay::new(settings.requests_per_key),
            settings,
            everybody,
            unenforced: OnceLock::new(),
            stopping,
        }
    }

    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Waits until the server is told to stop.
    pub async fn stops(&self) {
        // If the sender is gone, so is the server.
        let _ = self.stopping.clone().wait_for(|stopping| *stopping).await;
    }

    /// The beginning of this server's URLs, from the host name in a request.
    pub fn base(&self, host: Option<&str>) -> String {
        let scheme = if self.settings.tls { "https" } else { "http" };
        host.map(|host| format!("{scheme}://{host}")).unwrap_or_default()
    }

    /// Default limits that this host can't enforce are the same for every sandbox; the first one reports them.
    pub fn learn_unenforced(&self, told: Vec<String>) -> Vec<String> {
        if !told.is_empty() {
            return self.unenforced.get_or_init(|| told).clone();
        }
        self.known_unenforced()
    }

    pub fn known_unenforced(&self) -> Vec<String> {
        self.unenforced.get().cloned().unwrap_or_default()
    }
}
