//! Which runs are over, for calls of models that programs in their sandboxes have under way: these end then.
//!
//! A run may end in another process, a worker's. So the store is asked, once for all of them together, and only while there are such
//! calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use saggar_domain::RunId;
use saggar_store::Store;
use tokio::sync::watch;
use tokio::time::sleep;

/// How often the store is asked.
const ASK_EVERY: Duration = Duration::from_millis(25);

/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Over {
    /// Those with calls under way. The task that asks is there exactly while this isn't empty.
    runs: Arc<Mutex<HashMap<RunId, watch::Sender<bool>>>>,
}

impl Over {
    /// Waits until a run has finished.
    pub(super) async fn wait(&self, store: &Store, run: RunId) {
        let mut told = {
            let mut runs = self.lock();
            if runs.is_empty() {
                tokio::spawn(self.clone().ask(store.clone()));
            }
            runs.entry(run).or_insert_with(|| watch::Sender::new(false)).subscribe()
        };
        // The sender goes only when it has told, or with its last receiver.
        let _ = told.wait_for(|is_over| *is_over).await;
    }

    async fn ask(self, store: Store) {
        loop {
            sleep(ASK_EVERY).await;
            let asked: Vec<RunId> = {
                let mut runs = self.lock();
                runs.retain(|_, tell| tell.receiver_count() > 0);
                if runs.is_empty() {
                    return;
                }
                runs.keys().cloned().collect()
            };
            match store.finished_of(asked).await {
                Ok(finished) => {
                    let runs = self.lock();
                    for run in finished {
                        if let Some(tell) = runs.get(&run) {
                            tell.send_replace(true);
                        }
                    }
                }
                Err(error) => tracing::warn!(error = %error, "asking which runs are over failed"),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RunId, watch::Sender<bool>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
