//! Decisions on their way to the supervisor, in the order in which they were made. A connection is announced in the same order, before
//! any decision about it.
//!
//! A slow supervisor never holds up traffic: what the queue can't take is summed up by host. Allowed and denied decisions have a
//! bound each, because a sandbox can provoke refusals at will: they must not crowd out what was allowed.

use std::sync::{Arc, Mutex, PoisonError};

use saggar_domain::net::{Flood, NetDecision, Summed, Verdict};
use saggar_supervisor::egress::{Connected, FromEgress};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// The receiving end. Given out once, when the session opens.
#[derive(Debug)]
pub struct Decisions {
    queue: mpsc::Receiver<Waiting>,
    flood: Arc<Mutex<Flood>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    /// INVARIANT: has room for all places, so a decision with a place always fits.
    queue: mpsc::Sender<Waiting>,
    allowed: Arc<Semaphore>,
    denied: Arc<Semaphore>,
    connected: Arc<Semaphore>,
    flood: Arc<Mutex<Flood>>,
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
    let flood = Arc::<Mutex<Flood>>::default();
    let (allowed, denied, connected) = (places(), places(), places());
    let outbox = Outbox { queue: sender, allowed, denied, connected, flood: Arc::clone(&flood) };
    (outbox, Decisions { queue: receiver, flood })
}

impl Outbox {
    pub fn send(&self, decision: NetDecision) {
        let places = match decision.verdict {
            Verdict::Allowed => &self.allowed,
            Verdict::Denied => &self.denied,
        };
        match Arc::clone(places).try_acquire_owned() {
            Ok(place) => self.put(place, Message::Decision(Box::new(decision))),
            Err(_) => self.flood.lock().unwrap_or_else(PoisonError::into_inner).add(decision),
        }
    }

    /// Announces a connection. If there is no room, its exec stays unknown.
    pub fn announce(&self, connected: Connected) {
        if let Ok(place) = Arc::clone(&self.connected).try_acquire_owned() {
            self.put(place, Message::Connected(connected));
        }
    }

    /// It fails only if nobody listens any more.
    fn put(&self, place: OwnedSemaphorePermit, message: Message) {
        drop(self.queue.try_send(Waiting { message, _place: place }));
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

    /// Sums of what the queue couldn't take since the last call.
    pub fn take_flood(&self) -> Summed {
        self.flood.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
