//! Sandboxes that nobody here knows of: those whose supervisor was not ready yet when their server died and this one looked around, and
//! those that another process of this machine made.
//!
//! Such a one has a socket, and is neither among the living nor in the pool. So has one of ours for a moment, between two steps of a
//! create; hence it must be found so twice in a row, and rounds are further apart than any such moment.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use saggar_domain::SandboxId;

use super::Sandboxes;
use super::adopt::{Adopted, Heard};

/// Those that nobody knew of when they were last looked for.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<BTreeSet<SandboxId>>);

impl Strangers {
    /// Of those that are unknown now, the ones that were so before.
    fn seen_again(&self, unknown: BTreeSet<SandboxId>) -> Vec<SandboxId> {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let again = unknown.intersection(&last).cloned().collect();
        *last = unknown;
        again
    }
}

impl Sandboxes {
    /// Takes in what can be given to somebody, and ends the rest.
    pub(super) async fn meet_strangers(&self) {
        let sockets = match self.inner.places.sockets() {
            Ok(sockets) => sockets,
            Err(error) => {
                tracing::error!(error = %error, "the control sockets can't be listed");
                return;
            }
        };
        let is_unknown = |id: &SandboxId| self.inner.register.get(id).is_none() && !self.inner.pool.has(id);
        let unknown = sockets.into_iter().filter(is_unknown).collect();
        let mut found = Adopted::default();
        for (id, heard) in self.ask_all(self.inner.strangers.seen_again(unknown)).await {
            // One that doesn't answer is dead, and the reaper's.
            let Heard::Described(description) = heard else { continue };
            match self.store().sandbox_of_any(id.clone()).await {
                // Another process of this machine made it, a worker for example: it has an owner, and is ours to watch too.
                Ok(Some(row)) if row.life.state().is_live() => {
                    self.adopt_late(&row.asked.project, &id).await;
                }
                Ok(_) => self.adopt_without_row(&id, *description, &mut found).await,
                // Who it belongs to can't be told now; it is looked at again.
                Err(error) => tracing::error!(sandbox = %id, error = %error, "a sandbox's row can't be read"),
            }
        }
        if found != Adopted::default() {
            tracing::info!(ready = found.ready, ended = found.strangers, "sandboxes that nobody knew of were found");
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
