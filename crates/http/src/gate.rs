//! What every request needs, whichever API it is for.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use saggar_domain::ByteSize;
use saggar_runtime::{Sandboxes, Subject};
use tokio::sync::watch;

use crate::access::keys::Keys;
use crate::request::context::UnderWay;

/// The gate as handlers share it. The state of an API gives it with `FromRef`, so that extractors find it.
pub type Shared = Arc<Gate>;

/// The sandboxes, and who may get to them.
#[derive(Debug)]
pub struct Gate {
    pub sandboxes: Sandboxes,
    pub keys: Keys,
    pub settings: GateSettings,
    /// How many requests each key has under way.
    pub(crate) under_way: UnderWay,
    /// The subject of every request where no keys are asked for.
    pub(crate) everybody: Option<Subject>,
    /// Default limits that this host can't enforce, known once a sandbox has reported them.
    unenforced: OnceLock<Vec<String>>,
    /// Turns true when the server is told to stop.
    stopping: watch::Receiver<bool>,
}

/// The settings that both APIs go by.
#[derive(Clone, Debug)]
pub struct GateSettings {
    pub tls: bool,
    /// Ports of sandboxes are at `{port}-{sandbox}.DOMAIN`.
    pub domain: String,
    pub default_ttl: Duration,
    pub upload_max: ByteSize,
    pub requests_per_key: usize,
}

impl Gate {
    /// `everybody` is the subject of every request where no keys are asked for.
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

    /// How addresses of this server begin, by what a request says its name is.
    pub fn base(&self, host: Option<&str>) -> String {
        let scheme = if self.settings.tls { "https" } else { "http" };
        host.map(|host| format!("{scheme}://{host}")).unwrap_or_default()
    }

    /// Default limits that this host can't enforce are the same for every sandbox; the first one tells.
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
