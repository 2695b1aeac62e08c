//! Calls under way: each is counted by its project's rate limits when it begins, and gives its place back when it ends.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use saggar_domain::ProjectId;

use crate::failure::{Failure, FailureKind};
use crate::gateway::{Gateway, Inner};

/// A counted call. It ends when this is dropped.
pub(crate) struct UnderWay {
    gateway: Arc<Inner>,
    project: ProjectId,
}

impl Gateway {
    /// Counts a call with the most tokens that it may come to, or refuses it.
    pub(crate) fn count(&self, project: &ProjectId, tokens: u64) -> Result<UnderWay, Failure> {
        let limits = self.catalogue().limits(project);
        let mut rates = self.0.rates.lock().unwrap_or_else(PoisonError::into_inner);
        let rates = rates.entry(project.clone()).or_default();
        rates.take(&limits, tokens, Instant::now()).map_err(|refused| {
            let message = format!("the project has reached its limit of {}", refused.what);
            Failure::new(FailureKind::RateLimited, message).after(Some(refused.wait))
        })?;
        Ok(UnderWay { gateway: Arc::clone(&self.0), project: project.clone() })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut rates = self.gateway.rates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rates) = rates.get_mut(&self.project) {
            rates.ended();
        }
    }
}
