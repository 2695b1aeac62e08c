//! The state of E2B's routes, in addition to the gate.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRef;
use saggar_domain::{ExecId, NetworkMode};
use saggar_http::Gate;

use crate::filesystem::Watchers;
use crate::process::Inputs;

/// The state of E2B's routes, shared by handlers.
#[derive(Clone, Debug)]
pub struct Shared(Arc<E2b>);

/// The state of E2B's routes. It gives access to the gate.
#[derive(Debug)]
pub struct E2b {
    pub(crate) gate: Arc<Gate>,
    /// Network mode of sandboxes created by E2B's clients, which expect full internet access.
    pub(crate) network: NetworkMode,
    /// Connections to the input of programs.
    pub(crate) inputs: Inputs,
    /// Directories that clients poll for changes.
    pub(crate) watchers: Watchers,
}

impl Shared {
    pub fn new(gate: Arc<Gate>, network: NetworkMode) -> Self {
        Self(Arc::new(E2b { gate, network, inputs: Inputs::default(), watchers: Watchers::default() }))
    }

    /// Releases the input of a program, so that another connection can feed it.
    pub fn yield_input(&self, exec: &ExecId) {
        self.inputs.yield_way(exec);
    }
}

impl Deref for Shared {
    type Target = E2b;

    fn deref(&self) -> &E2b {
        &self.0
    }
}

impl Deref for E2b {
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
