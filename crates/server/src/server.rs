//! What every request of the native API needs.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRef;
use saggar_domain::Capabilities;
use saggar_http::Gate;
use saggar_runtime::runs::Runs;
use tokio::sync::OnceCell;

use crate::settings::WebOrigin;

/// A server, as handlers see it.
#[derive(Clone, Debug)]
pub(crate) struct Shared(pub(crate) Arc<Server>);

/// What the native API goes by. All of the gate is reached through it.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) gate: Arc<Gate>,
    pub(crate) e2b: saggar_e2b::Shared,
    pub(crate) runs: Runs,
    /// Pages that may open a WebSocket here, beside our own.
    pub(crate) origins: Vec<WebOrigin>,
    /// What this host can give: tried once, when somebody asks.
    pub(crate) capabilities: OnceCell<Capabilities>,
}

impl Deref for Shared {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl Deref for Server {
    type Target = Gate;

    fn deref(&self) -> &Gate {
        &self.gate
    }
}

impl FromRef<Shared> for Arc<Gate> {
    fn from_ref(shared: &Shared) -> Self {
        Arc::clone(&shared.gate)
    }
}
