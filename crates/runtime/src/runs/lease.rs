//! Leases, from the side of who holds them: how long a worker may believe that its runs are its own.
//!
//! What counts here is time that has passed since a renewal was *asked for*, by the monotonic clock: so a worker that was stopped for a
//! while knows it before it does anything. The leases in the store are by the same clock, so nobody who sets the wall clock ends one. The
//! store's fence is what makes a mistake harmless; this makes it rare.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use saggar_store::Holder;
use tokio::time::{Instant, sleep, timeout_at};

use super::effects::Effects;
use super::journal::Journal;

/// What a worker believes. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Belief {
    begun: Instant,
    until_ms: Arc<AtomicU64>,
}

impl Belief {
    pub(super) fn new(span: Duration) -> Self {
        let belief = Self { begun: Instant::now(), until_ms: Arc::default() };
        belief.prolong(belief.begun, span);
        belief
    }

    /// Whether the runs are still sure to be this worker's.
    pub(super) fn holds(&self) -> bool {
        Instant::now() < self.until()
    }

    pub(super) fn until(&self) -> Instant {
        self.begun + Duration::from_millis(self.until_ms.load(Ordering::Acquire))
    }

    fn prolong(&self, asked: Instant, span: Duration) {
        let until = (asked + span).saturating_duration_since(self.begun);
        self.until_ms.store(u64::try_from(until.as_millis()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// Waits for the moment at which the runs may be another's, which every renewal moves away.
    pub(super) async fn lost(&self) {
        while self.holds() {
            tokio::time::sleep_until(self.until()).await;
        }
    }

    /// Renews for ever, all runs in one write; returns when that was not possible for too long.
    pub(super) async fn keep<J: Journal, E: Effects>(
        &self,
        journal: &J,
        effects: &E,
        holder: &Holder,
        span: Duration,
        every: Duration,
    ) {
        loop {
            sleep(every).await;
            let asked = Instant::now();
            if !self.holds() {
                return;
            }
            let renewed = timeout_at(self.until(), journal.renew(holder.clone(), effects.uptime().after(span))).await;
            match renewed {
                Ok(Ok(_)) if self.holds() => self.prolong(asked, span),
                // What was written after the end of the lease gives nothing back that another may have.
                Ok(Ok(_)) | Err(_) => return,
                Ok(Err(error)) => tracing::warn!(error = %error, "leases can't be renewed"),
            }
        }
    }
}
