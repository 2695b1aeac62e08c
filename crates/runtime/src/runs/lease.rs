//! Leases from the holder's side: how long a worker may assume that it holds its runs.
//!
//! The time counts from the moment a renewal was *requested*, by the monotonic clock: so a worker that was stopped
//! for a while notices before it does anything. The leases in the store use the same clock, so setting the wall clock
//! ends none. The store's fence makes a mistake harmless; this makes it rare.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use saggar_store::Holder;
use tokio::time::{Instant, sleep, timeout_at};

use super::effects::Effects;
use super::journal::Journal;

/// A worker's assumption about its leases. Cheap to clone.
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

    /// Whether this worker certainly still holds its runs.
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

    /// Waits until the runs may belong to another worker. Every renewal postpones that.
    pub(super) async fn lost(&self) {
        while self.holds() {
            tokio::time::sleep_until(self.until()).await;
        }
    }

    /// Renews forever, all runs in one write; returns if that failed for too long.
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
                // A renewal after the end of the lease is too late: another worker may have claimed the runs.
                Ok(Ok(_)) | Err(_) => return,
                Ok(Err(error)) => tracing::warn!(error = %error, "renewing leases failed"),
            }
        }
    }
}
