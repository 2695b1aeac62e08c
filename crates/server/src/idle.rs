//! Whether anything needs the server: a sandbox that has not ended, or a run that has not finished.
//!
//! For a server that was started on behalf of one command and should not stay forever. A run that waits for a person
//! needs its server, too.

use std::time::Duration;

use saggar_store::Store;
use tokio::time::{Instant, sleep};

/// How often it is looked at, at most.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Returns when nothing has needed the server for this long; never without a time. May be cancelled at any await.
pub(crate) async fn idle(store: &Store, patience: Option<Duration>) {
    let Some(patience) = patience else { return std::future::pending().await };
    let mut since = Instant::now();
    while since.elapsed() < patience {
        sleep(LOOK_EVERY.min(patience / 4)).await;
        // A store that can't be read says nothing about being idle.
        let is_needed = match (store.live_sandboxes().await, store.has_unfinished_runs().await) {
            (Ok(0), Ok(false)) => false,
            (Ok(_) | Err(_), Ok(_) | Err(_)) => true,
        };
        if is_needed {
            since = Instant::now();
        }
    }
}
