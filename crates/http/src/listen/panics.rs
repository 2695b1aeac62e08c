//! Panics: one while a connection is served costs its request, at most its connection; one anywhere else ends the process.
//!
//! What handlers hold is the runtime's, behind locks that are never left half-way; so the next request can be served. What goes on in the
//! background (making and ending sandboxes, the reaper, runs, the store's threads) is not asked for again by anybody: there a new start,
//! which finds everything again, is better than a server that has silently stopped doing something.

use std::cell::Cell;
use std::panic::PanicHookInfo;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper::rt::Executor;

thread_local! {
    /// Whether what this thread does now is part of a connection.
    static CONTAINED: Cell<bool> = const { Cell::new(false) };
}

/// How many panics were survived.
static SURVIVED: AtomicU64 = AtomicU64::new(0);

/// From now on panics within [`contained`] are logged and counted; all others go where they went before.
pub fn contain_panics() {
    let otherwise = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| if CONTAINED.get() { log(info) } else { otherwise(info) }));
}

fn log(info: &PanicHookInfo<'_>) {
    let panics = SURVIVED.fetch_add(1, Ordering::Relaxed) + 1;
    let at = info.location().map(ToString::to_string).unwrap_or_default();
    let payload = info.payload();
    let what = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    tracing::error!(panics, at, what, "a panic while serving a connection");
}

/// Part of a connection.
pub(crate) fn contained<F: Future>(future: F) -> Contained<F> {
    Contained(Box::pin(future))
}

/// A future whose panics are survived by whoever catches them.
pub(crate) struct Contained<F>(Pin<Box<F>>);

impl<F: Future> Future for Contained<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _within = Within(CONTAINED.replace(true));
        self.0.as_mut().poll(context)
    }
}

/// Puts back what was, also when a panic passes by.
struct Within(bool);

impl Drop for Within {
    fn drop(&mut self) {
        CONTAINED.set(self.0);
    }
}

/// Runs what HTTP/2 does at the same time on one connection.
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
