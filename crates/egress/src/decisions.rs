//! Decisions on their way to the supervisor, in the order in which they were made.
//!
//! A slow supervisor never holds up traffic: what the queue can't take is counted. Allowed and denied decisions have a
//! bound each, because a sandbox can provoke refusals at will: they must not crowd out what was allowed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use saggar_domain::net::{NetDecision, Verdict};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// The receiving end. Given out once, when the session opens.
#[derive(Debug)]
pub struct Decisions {
    queue: mpsc::Receiver<Waiting>,
    dropped: Arc<AtomicU64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    /// INVARIANT: has room for all places, so a decision with a place always fits.
    queue: mpsc::Sender<Waiting>,
    allowed: Arc<Semaphore>,
    denied: Arc<Semaphore>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Waiting {
    decision: NetDecision,
    _place: OwnedSemaphorePermit,
}

/// `capacity` decisions of each verdict may wait.
pub(crate) fn queue(capacity: usize) -> (Outbox, Decisions) {
    let capacity = capacity.max(1);
    let (sender, receiver) = mpsc::channel(2 * capacity);
    let places = || Arc::new(Semaphore::new(capacity));
    let dropped = Arc::new(AtomicU64::new(0));
    let outbox = Outbox { queue: sender, allowed: places(), denied: places(), dropped: Arc::clone(&dropped) };
    (outbox, Decisions { queue: receiver, dropped })
}

impl Outbox {
    pub fn send(&self, decision: NetDecision) {
        let places = match decision.verdict {
            Verdict::Allowed => &self.allowed,
            Verdict::Denied => &self.denied,
        };
        let sent = Arc::clone(places)
            .try_acquire_owned()
            .is_ok_and(|place| self.queue.try_send(Waiting { decision, _place: place }).is_ok());
        if !sent {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Decisions {
    /// The next decision; `None` when the session is over. May be cancelled at any time.
    pub async fn next(&mut self) -> Option<NetDecision> {
        self.queue.recv().await.map(|waiting| waiting.decision)
    }

    /// One that waits already.
    pub fn try_next(&mut self) -> Option<NetDecision> {
        self.queue.try_recv().ok().map(|waiting| waiting.decision)
    }

    /// How many were dropped since the last call.
    pub fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}
