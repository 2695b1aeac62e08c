//! Sandboxes that this process doesn't know: their supervisor was not ready yet when their server died and this one
//! adopted the others, or another process of this machine created them.
//!
//! Such a sandbox has a socket, and is neither live nor in the pool here. One of ours looks the same for a moment,
//! between two steps of its creation. So it must be found twice in a row, and rounds are further apart than any such
//! moment.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use saggar_domain::SandboxId;

use super::Sandboxes;
use super::adopt::{Adopted, Heard};

/// The unknown sandboxes of the last round.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<BTreeSet<SandboxId>>);

impl Strangers {
    /// The unknown sandboxes that were also unknown in the last round.
    fn seen_again(&self, unknown: BTreeSet<SandboxId>) -> Vec<SandboxId> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let again = unknown.intersection(&last).cloned().collect();
        *last = unknown;
        again
    }
}

impl Sandboxes {
    /// Adopts those that have or can get an owner, and ends the rest.
    pub(super) async fn meet_strangers(&self) {
        let sockets = match self.inner.places.sockets() {
            Ok(sockets) => sockets,
            Err(error) => {
                tracing::error!(error = %error, "listing the control sockets failed");
                return;
            }
        };
        let is_unknown = |id: &SandboxId| self.inner.register.get(id).is_none() && !self.inner.pools.has(id);
        let unknown = sockets.into_iter().filter(is_unknown).collect();
        let mut found = Adopted::default();
        for (id, heard) in self.ask_all(self.inner.strangers.seen_again(unknown)).await {
            // One that doesn't respond is dead, and left to the reaper.
            let Heard::Described(description) = heard else { continue };
            match self.store().sandbox_of_any(id.clone()).await {
                // Another process of this machine created it, such as a worker: it has an owner, and must be watched
                // here too.
                Ok(Some(row)) if row.life.state().is_live() => {
                    self.adopt_late(&row.asked.project, &id).await;
                }
                Ok(_) => self.adopt_without_row(&id, *description, &mut found).await,
                // Its owner is unknown for now; it is checked again.
                Err(error) => tracing::error!(sandbox = %id, error = %error, "reading a sandbox's row failed"),
            }
        }
        if found != Adopted::default() {
            tracing::info!(ready = found.ready, ended = found.strangers, "handled unknown sandboxes");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_that_is_unknown_twice_in_a_row_is_a_stranger() {
        let [first, second] = [1u8, 2].map(|number| SandboxId::from_random([number; 16]));
        let strangers = Strangers::default();
        let set = |ids: &[&SandboxId]| ids.iter().map(|id| (*id).clone()).collect::<BTreeSet<_>>();
        assert_eq!(strangers.seen_again(set(&[&first])), []);
        assert_eq!(strangers.seen_again(set(&[&first, &second])), std::slice::from_ref(&first));
        assert_eq!(strangers.seen_again(set(&[&first])), std::slice::from_ref(&first));
        assert_eq!(strangers.seen_again(set(&[])), []);
        assert_eq!(strangers.seen_again(set(&[&first])), []);
    }
}
