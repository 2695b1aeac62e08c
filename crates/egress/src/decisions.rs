//! Decisions on their way to the supervisor. A slow supervisor never holds up traffic: what the queue can't take is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use saggar_domain::net::NetDecision;
use tokio::sync::mpsc;

/// The receiving end. Given out once, when the session opens.
#[derive(Debug)]
pub struct Decisions {
    queue: mpsc::Receiver<NetDecision>,
    dropped: Arc<AtomicU64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    queue: mpsc::Sender<NetDecision>,
    dropped: Arc<AtomicU64>,
}

pub(crate) fn queue(capacity: usize) -> (Outbox, Decisions) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    let dropped = Arc::new(AtomicU64::new(0));
    (Outbox { queue: sender, dropped: Arc::clone(&dropped) }, Decisions { queue: receiver, dropped })
}

impl Outbox {
    pub fn send(&self, decision: NetDecision) {
        if self.queue.try_send(decision).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Decisions {
    /// The next decision; `None` when the session is over. May be cancelled at any time.
    pub async fn next(&mut self) -> Option<NetDecision> {
        self.queue.recv().await
    }

    /// One that waits already.
    pub fn try_next(&mut self) -> Option<NetDecision> {
        self.queue.try_recv().ok()
    }

    /// How many were dropped since the last call.
    pub fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}
