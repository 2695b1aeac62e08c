//! What executors act with, for one run while a worker holds it.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::http::{Endpoint, HttpTool};
use super::sandbox::RunSandbox;
use crate::runs::real::RunSettings;

#[derive(Debug)]
pub struct Hands {
    pub(in crate::runs) sandbox: RunSandbox,
    pub(in crate::runs) http: HttpTool,
    /// The tools that the agent declares, by name.
    pub(in crate::runs) endpoints: BTreeMap<String, Endpoint>,
}

/// Settings that may change at run time: each effect uses those of its start. Cheap to clone.
#[derive(Clone, Debug)]
pub(in crate::runs) struct LiveSettings(Arc<RwLock<Arc<RunSettings>>>);

impl LiveSettings {
    pub(in crate::runs) fn new(settings: RunSettings) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(settings))))
    }

    pub(in crate::runs) fn get(&self) -> Arc<RunSettings> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(in crate::runs) fn set(&self, settings: RunSettings) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
    }
}
