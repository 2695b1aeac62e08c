//! What a request of E2B's needs beside the gate.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::FromRef;
use saggar_domain::{ExecId, NetworkMode};
use saggar_http::Gate;

use crate::filesystem::Watchers;
use crate::process::Inputs;

/// The state of E2B's routes, as handlers share it.
#[derive(Clone, Debug)]
pub struct Shared(Arc<E2b>);

/// What E2B's routes go by. All of the gate is reached through it.
#[derive(Debug)]
pub struct E2b {
    pub(crate) gate: Arc<Gate>,
    /// How sandboxes of E2B's clients, which expect the whole internet, reach the network.
    pub(crate) network: NetworkMode,
    /// Ways to the input of programs.
    pub(crate) inputs: Inputs,
    /// Directories that clients poll for changes.
    pub(crate) watchers: Watchers,
}

impl Shared {
    pub fn new(gate: Arc<Gate>, network: NetworkMode) -> Self {
        Self(Arc::new(E2b { gate, network, inputs: Inputs::default(), watchers: Watchers::default() }))
    }

    /// Lets go of the input of a program, so that another connection can feed it.
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
