//! Decisions on their way to the supervisor, in the order in which they were made. A connection is announced in the same order, before
//! any decision about it.
//!
//! A slow supervisor never holds up traffic: what the queue can't take is counted. Allowed and denied decisions have a
//! bound each, because a sandbox can provoke refusals at will: they must not crowd out what was allowed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use saggar_domain::net::{NetDecision, Verdict};
use saggar_supervisor::egress::{Connected, FromEgress};
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
    connected: Arc<Semaphore>,
    dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Waiting {
    message: Message,
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
enum Message {
    Decision(Box<NetDecision>),
    Connected(Connected),
}

/// `capacity` decisions of each verdict may wait, and as many connections.
pub(crate) fn queue(capacity: usize) -> (Outbox, Decisions) {
    let capacity = capacity.max(1);
    let (sender, receiver) = mpsc::channel(3 * capacity);
    let places = || Arc::new(Semaphore::new(capacity));
    let dropped = Arc::new(AtomicU64::new(0));
    let (allowed, denied, connected) = (places(), places(), places());
    let outbox = Outbox { queue: sender, allowed, denied, connected, dropped: Arc::clone(&dropped) };
    (outbox, Decisions { queue: receiver, dropped })
}

impl Outbox {
    pub fn send(&self, decision: NetDecision) {
        let places = match decision.verdict {
            Verdict::Allowed => &self.allowed,
            Verdict::Denied => &self.denied,
        };
        if !self.put(places, Message::Decision(Box::new(decision))) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Announces a connection. If there is no room, its exec stays unknown.
    pub fn announce(&self, connected: Connected) {
        self.put(&self.connected, Message::Connected(connected));
    }

    fn put(&self, places: &Arc<Semaphore>, message: Message) -> bool {
        let place = Arc::clone(places).try_acquire_owned();
        place.is_ok_and(|place| self.queue.try_send(Waiting { message, _place: place }).is_ok())
    }
}

impl Decisions {
    /// What to tell the supervisor next; `None` when the session is over. May be cancelled at any time.
    pub async fn next_message(&mut self) -> Option<FromEgress> {
        Some(match self.queue.recv().await?.message {
            Message::Decision(decision) => FromEgress::Decision(decision),
            Message::Connected(connected) => FromEgress::Connected(connected),
        })
    }

    /// The next decision; `None` when the session is over. May be cancelled at any time.
    pub async fn next(&mut self) -> Option<NetDecision> {
        loop {
            if let Message::Decision(decision) = self.queue.recv().await?.message {
                return Some(*decision);
            }
        }
    }

    /// One that waits already.
    pub fn try_next(&mut self) -> Option<NetDecision> {
        loop {
            if let Message::Decision(decision) = self.queue.try_recv().ok()?.message {
                return Some(*decision);
            }
        }
    }

    /// How many were dropped since the last call.
    pub fn take_dropped(&self) -> u64 {
        self.dropped.swap(0, Ordering::Relaxed)
    }
}
