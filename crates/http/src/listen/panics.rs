//! Panics: a panic while a connection is served fails its request, at most its connection; a panic anywhere else ends
//! the process.
//!
//! Handlers only hold state of the runtime, behind locks that are never left in an inconsistent state; so the next
//! request can be served. Background work (creating and ending sandboxes, the reaper, runs, the store's threads) is
//! not restarted: a new process, which recovers everything, is better than a server that has silently stopped doing
//! something.

use std::cell::Cell;
use std::panic::PanicHookInfo;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper::rt::Executor;

thread_local! {
    /// Whether this thread is currently serving a connection.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// Number of survived panics.
static SURVIVED: AtomicU64 = AtomicU64::new(0);

/// From now on panics within [`contained`] are logged and counted; all others are handled as before.
pub fn contain_panics() {
    let otherwise = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| if CONTAINED.get() { log(info) } else { otherwise(info) }));
}

fn log(info: &PanicHookInfo<'_>) {
    let panics = SURVIVED.fetch_add(1, Ordering::Relaxed) + 1;
    let at = info.location().map(ToString::to_string).unwrap_or_default();
    let payload = info.payload();
    let what = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panics, at, what, "panic while serving a connection");
}

/// Marks a future as part of a connection.
pub(crate) fn contained<F: Future>(future: F) -> Contained<F> {
    Contained(Box::pin(future))
}

/// A future whose panics the caller catches.
pub(crate) struct Contained<F>(Pin<Box<F>>);

impl<F: Future> Future for Contained<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _within = Within(CONTAINED.replace(true));
        self.0.as_mut().poll(context)
    }
}

/// Restores the previous value, also during a panic.
struct Within(bool);

impl Drop for Within {
    fn drop(&mut self) {
        CONTAINED.set(self.0);
    }
}

/// Runs the concurrent tasks of an HTTP/2 connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainedExecutor;

impl<F> Executor<F> for ContainedExecutor
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        tokio::spawn(contained(future));
    }
}
