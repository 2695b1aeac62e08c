//! The tasks of one connection: the drivers of its upstream connections, its HTTP/2 streams, its upgraded exchanges. They end with
//! the connection.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::JoinSet;

/// A handle; the owner is [`OwnedTasks`].
#[derive(Clone, Default)]
pub(crate) struct Tasks(Arc<Mutex<JoinSet<()>>>);

/// Ends the tasks when it is dropped.
pub(crate) struct OwnedTasks(pub Tasks);

impl Tasks {
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.lock();
        // Those that have ended, so that a long connection doesn't collect them.
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    fn lock(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        self.spawn(async move {
            task.await;
        });
    }
}

impl Drop for OwnedTasks {
    fn drop(&mut self) {
        self.0.lock().abort_all();
    }
}
