//! The pool: sandboxes created ahead of time, so that the first command of a new one doesn't have to wait.
//!
//! A sandbox in the pool is like any other, with a supervisor and a slot, but without an owner and without a row: if
//! this process dies, its successor finds it by its socket. The pool costs memory and improves latency, not
//! throughput; so it is filled in the background, one at a time, and sized by demand.
//!
//! INVARIANT: the sandboxes in a pool were created to the default spec, those in the pool of proxied ones to that with network mode
//! `proxied` and without rules: they reach nothing until a claim gives them some.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use saggar_domain::{Draft, NetworkMode, SandboxId};
use tokio::sync::Notify;

use super::admission::Slot;
use super::sizing::{Demand, PoolSize};

/// How long a sandbox waits for an owner; then it ends by itself, even without a server.
pub(crate) const UNOWNED_MAX: Duration = Duration::from_secs(60 * 60);
/// This long before its end it is no longer given away.
const STALE_BEFORE: Duration = Duration::from_secs(60);

/// Which default spec the sandboxes of a pool have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolKind {
    Plain,
    Proxied,
}

impl PoolKind {
    pub(crate) const ALL: [Self; 2] = [Self::Plain, Self::Proxied];

    pub(crate) fn spec(self) -> Draft {
        match self {
            Self::Plain => Draft::default(),
            Self::Proxied => Draft { network: Some(NetworkMode::Proxied), ..Draft::default() },
        }
    }
}

/// A sandbox without an owner.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) id: SandboxId,
    pub(crate) kind: PoolKind,
    pub(crate) slot: Slot,
    /// It ends by itself soon after: then it is no longer given away.
    fresh_until: Instant,
}

impl Ready {
    /// It ends by itself in `left`.
    pub(crate) fn new(id: SandboxId, kind: PoolKind, slot: Slot, left: Duration) -> Self {
        let fresh_until = Instant::now() + left.min(UNOWNED_MAX).saturating_sub(STALE_BEFORE);
        Self { id, kind, slot, fresh_until }
    }
}

/// The sandboxes without an owner.
#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<Supply>,
    changed: Notify,
}

#[derive(Debug)]
struct Supply {
    ready: VecDeque<Ready>,
    demand: Demand,
}

impl Pool {
    pub(crate) fn new(size: PoolSize) -> Self {
        Self { state: Mutex::new(Supply { ready: VecDeque::new(), demand: Demand::new(size) }), changed: Notify::new() }
    }

    /// A fresh one, if there is one. Asking counts as demand either way.
    pub(crate) fn take(&self) -> Option<Ready> {
        let mut state = self.lock();
        let now = Instant::now();
        state.demand.note(now);
        // The newest: the older ones become stale in turn, and are replaced.
        let is_fresh = state.ready.back().is_some_and(|ready| ready.fresh_until > now);
        let ready = if is_fresh { state.ready.pop_back() } else { None };
        drop(state);
        self.changed.notify_one();
        ready
    }

    pub(crate) fn put(&self, ready: Ready) {
        self.lock().ready.push_back(ready);
    }

    /// One that is no longer fresh.
    pub(crate) fn take_stale(&self) -> Option<Ready> {
        let mut state = self.lock();
        let is_stale = state.ready.front().is_some_and(|ready| ready.fresh_until <= Instant::now());
        if is_stale { state.ready.pop_front() } else { None }
    }

    pub(crate) fn ready(&self) -> usize {
        self.lock().ready.len()
    }

    pub(crate) fn has(&self, id: &SandboxId) -> bool {
        self.lock().ready.iter().any(|ready| ready.id == *id)
    }

    /// How many are missing; negative if there are too many.
    pub(crate) fn missing(&self) -> isize {
        let mut state = self.lock();
        let wanted = state.demand.wanted(Instant::now());
        wanted.cast_signed() - state.ready.len().cast_signed()
    }

    /// One too many: the oldest, which has waited longest.
    pub(crate) fn give_up(&self) -> Option<Ready> {
        self.lock().ready.pop_front()
    }

    /// All of them, for a clean shutdown.
    pub(crate) fn drain(&self) -> Vec<Ready> {
        self.lock().ready.drain(..).collect()
    }

    /// Waits until one was taken, and then until none was for a while, or for `most`. May be cancelled at any await:
    /// [`Pool::missing`] shows what was taken, too.
    pub(crate) async fn lull(&self, quiet: Duration, most: Duration) {
        self.changed.notified().await;
        let in_a_burst = async { while tokio::time::timeout(quiet, self.changed.notified()).await.is_ok() {} };
        // A burst that doesn't end is also a reason to refill.
        let _ = tokio::time::timeout(most, in_a_burst).await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Supply> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_millis(20);
    const MOST: Duration = Duration::from_millis(200);

    /// The time of the lull if this many are taken, this far apart.
    async fn check_lull(takes: u32, apart: Duration, expected: Duration) {
        let pool = Pool::new(PoolSize { least: 1, most: 1 });
        let start = tokio::time::Instant::now();
        let take = async {
            for _ in 0..takes {
                pool.take();
                tokio::time::sleep(apart).await;
            }
        };
        let lull = async {
            pool.lull(QUIET, MOST).await;
            start.elapsed()
        };
        let ((), came) = tokio::join!(take, lull);
        assert!(
            (expected..expected + Duration::from_millis(5)).contains(&came),
            "{takes} takes, {apart:?} apart: {came:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_lull_comes_after_the_last_take_and_does_not_wait_for_ever() {
        check_lull(1, Duration::ZERO, QUIET).await;
        check_lull(5, Duration::from_millis(10), Duration::from_millis(40) + QUIET).await;
        check_lull(100, Duration::from_millis(10), MOST).await;
    }
}
