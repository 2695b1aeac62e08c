//! The state of the native API.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRef;
use saggar_domain::Capabilities;
use saggar_gateway::Gateway;
use saggar_http::Gate;
use saggar_runtime::runs::Runs;
use tokio::sync::OnceCell;

use crate::models::Room;
use crate::settings::WebOrigin;

#[derive(Clone, Debug)]
pub(crate) struct Shared(pub(crate) Arc<Server>);

/// The state of the native API. It gives access to the gate.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) gate: Arc<Gate>,
    pub(crate) e2b: saggar_e2b::Shared,
    pub(crate) runs: Runs,
    pub(crate) models: Gateway,
    pub(crate) model_room: Room,
    /// Additional origins that may open a WebSocket.
    pub(crate) origins: Vec<WebOrigin>,
    /// The host's capabilities: tested once, on the first request.
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
