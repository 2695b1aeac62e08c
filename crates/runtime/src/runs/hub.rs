//! Who waits for what about runs, within this process. Only to be quicker: whoever waits looks at the store from time to time anyway, since
//! other processes write there too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use saggar_domain::RunId;
use tokio::sync::Notify;

/// Passes on that something happened. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Hub {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    due: Notify,
    topics: Mutex<HashMap<RunId, Arc<Topic>>>,
}

/// One run that somebody waits for. Forgotten when nobody does.
#[derive(Debug, Default)]
pub(super) struct Topic {
    pub(super) letters: Notify,
    pub(super) entries: Notify,
}

impl Hub {
    /// There may be a run to take.
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

    /// Somebody wrote to a run: to whoever holds it here, and to whoever may take it.
    pub(super) fn letter(&self, run: &RunId) {
        self.letter_here(run);
        self.wake();
    }

    /// Somebody wrote to a run that is held here.
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
