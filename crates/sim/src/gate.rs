//! Stops a worker as SIGSTOP does: its tasks are not polled while time goes on.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// Controls whether a worker's tasks run. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    is_closed: bool,
    waiting: Vec<Waker>,
}

impl Gate {
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
    }

    pub(crate) fn open(&self) {
        let mut inner = self.lock();
        inner.is_closed = false;
        for waker in inner.waiting.drain(..) {
            waker.wake();
        }
    }

    /// Polls the work only while the gate is open.
    pub(crate) async fn within<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|context| {
            {
                let mut inner = self.lock();
                if inner.is_closed {
                    inner.waiting.push(context.waker().clone());
                    return Poll::Pending;
                }
            }
            work.as_mut().poll(context)
        })
        .await
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
