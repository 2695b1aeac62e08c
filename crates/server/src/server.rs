//! What every request needs, shared by all of them.

use std::sync::{Arc, OnceLock};

use saggar_domain::Capabilities;
use saggar_runtime::runs::Runs;
use saggar_runtime::{Sandboxes, Subject};
use tokio::sync::{OnceCell, watch};

use crate::config::Config;
use crate::context::UnderWay;
use crate::e2b::{Inputs, Watchers};
use crate::keys::Keys;

/// A server, as handlers see it.
pub(crate) type Shared = Arc<Server>;

/// What every request needs.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) sandboxes: Sandboxes,
    pub(crate) runs: Runs,
    pub(crate) keys: Keys,
    pub(crate) config: Config,
    /// How many requests each key has under way.
    pub(crate) under_way: UnderWay,
    /// Who everybody is, where no keys are asked for.
    pub(crate) everybody: Option<Subject>,
    /// What this host can give: tried once, when somebody asks.
    pub(crate) capabilities: OnceCell<Capabilities>,
    /// Default limits that this host can't enforce, once a sandbox has told.
    pub(crate) unenforced: OnceLock<Vec<String>>,
    /// Ways to the input of programs, for E2B's clients.
    pub(crate) inputs: Inputs,
    /// Directories that E2B's clients ask about now and then.
    pub(crate) watchers: Watchers,
    /// Turns true when the server is told to stop.
    pub(crate) stopping: watch::Receiver<bool>,
}

impl Server {
    /// Waits until the server is told to stop.
    pub(crate) async fn stops(&self) {
        // If nobody can tell any more, the server is gone.
        let _ = self.stopping.clone().wait_for(|stopping| *stopping).await;
    }

    /// How addresses of this server begin, by what a request says its name is.
    pub(crate) fn base(&self, host: Option<&str>) -> String {
        let scheme = if self.config.tls { "https" } else { "http" };
        host.map(|host| format!("{scheme}://{host}")).unwrap_or_default()
    }
}
