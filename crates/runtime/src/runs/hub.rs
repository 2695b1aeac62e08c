//! Notifications about runs within this process. They only reduce latency: all waiters also poll the store, because
//! other processes write to it too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use saggar_domain::RunId;
use tokio::sync::Notify;

use super::live::Live;

/// Passes notifications on. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Hub {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    due: Notify,
    topics: Mutex<HashMap<RunId, Arc<Topic>>>,
    live: Live,
}

/// A run with waiters. Dropped with the last waiter.
#[derive(Debug, Default)]
pub(super) struct Topic {
    pub(super) letters: Notify,
    pub(super) entries: Notify,
}

impl Hub {
    /// For a worker beside a server, whose clients hear what models say through this.
    pub fn with_live(live: Live) -> Self {
        Self { inner: Arc::new(Inner { live, ..Inner::default() }) }
    }

    /// What models of runs say while they say it.
    pub fn live(&self) -> &Live {
        &self.inner.live
    }

    /// There may be a run to claim.
    pub fn wake(&self) {
        self.inner.due.notify_one();
    }

    pub(super) async fn woken(&self) {
        self.inner.due.notified().await;
    }

    pub(super) fn topic(&self, run: &RunId) -> Arc<Topic> {
        let mut topics = self.inner.topics.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(topics.entry(run.clone()).or_default())
    }

    pub(super) fn forget(&self, run: &RunId, topic: Arc<Topic>) {
        drop(topic);
        let mut topics = self.inner.topics.lock().unwrap_or_else(PoisonError::into_inner);
        if topics.get(run).is_some_and(|topic| Arc::strong_count(topic) == 1) {
            topics.remove(run);
        }
    }

    /// A letter was sent to a run: notifies its holder in this process, and workers that may claim it.
    pub(super) fn letter(&self, run: &RunId) {
        self.letter_here(run);
        self.wake();
    }

    /// A letter was sent to a run that is held in this process.
    pub(super) fn letter_here(&self, run: &RunId) {
        if let Some(topic) = self.find(run) {
            topic.letters.notify_one();
        }
    }

    /// A run's journal has grown.
    pub(super) fn grown(&self, run: &RunId) {
        if let Some(topic) = self.find(run) {
            topic.entries.notify_waiters();
        }
    }

    fn find(&self, run: &RunId) -> Option<Arc<Topic>> {
        self.inner.topics.lock().unwrap_or_else(PoisonError::into_inner).get(run).cloned()
    }
}
