//! Sandboxes made ahead, so that the first command of a new one has nothing to wait for.
//!
//! A ready one is a sandbox like any other, with a supervisor and a slot, but without an owner and without a row: if this process
//! dies, its successor finds it by its socket. It costs memory and buys latency, not throughput; so it is filled in the
//! background, one at a time, and sized by use.
//!
//! INVARIANT: what is in the pool was made to the spec that a request without wishes of its own gets.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use saggar_domain::SandboxId;
use tokio::sync::Notify;

use super::admission::Slot;
use super::sizing::{Demand, PoolSize};

/// A sandbox without an owner.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) id: SandboxId,
    pub(crate) slot: Slot,
}

/// The sandboxes without an owner.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    ready: VecDeque<Ready>,
    demand: Demand,
}

impl Pool {
    pub(crate) fn new(size: PoolSize) -> Self {
        Self { state: Mutex::new(State { ready: VecDeque::new(), demand: Demand::new(size) }), changed: Notify::new() }
    }

    /// One, if there is one. Asking counts as demand either way.
    pub(crate) fn take(&self) -> Option<Ready> {
        let mut state = self.lock();
        state.demand.note(Instant::now());
        let ready = state.ready.pop_front();
        drop(state);
        self.changed.notify_one();
        ready
    }

    /// One more.
    pub(crate) fn put(&self, ready: Ready) {
        self.lock().ready.push_back(ready);
    }

    /// Whether it is one of them.
    pub(crate) fn has(&self, id: &SandboxId) -> bool {
        self.lock().ready.iter().any(|ready| ready.id == *id)
    }

    /// How many more there should be; negative when there are too many.
    pub(crate) fn missing(&self) -> isize {
        let mut state = self.lock();
        let wanted = state.demand.wanted(Instant::now());
        wanted.cast_signed() - state.ready.len().cast_signed()
    }

    /// One that is too many. The oldest has waited longest for nothing.
    pub(crate) fn give_up(&self) -> Option<Ready> {
        self.lock().ready.pop_front()
    }

    /// Everything that is ready, for an orderly end.
    pub(crate) fn drain(&self) -> Vec<Ready> {
        self.lock().ready.drain(..).collect()
    }

    /// Waits until something was taken.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
