//! The reading threads: each has its own read-only connection, and all take jobs from one queue.
//!
//! In WAL mode a reader sees the last commit before it began. It neither waits for the writer nor blocks it.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;

/// Concurrent reads. They are short and served from memory; more threads would only compete for the same cores.
pub(crate) const READERS: usize = 4;
/// Maximum number of queued reads; further callers wait for a free slot.
const QUEUE_MAX: usize = 1024;

type Job = Box<dyn FnOnce(&Connection) + Send>;

#[derive(Clone, Debug)]
pub(crate) struct Readers {
    queue: mpsc::Sender<Job>,
}

impl Readers {
    pub(crate) fn start(connections: Vec<Connection>) -> std::io::Result<(Self, Vec<JoinHandle<()>>)> {
        let (queue, waiting) = mpsc::channel::<Job>(QUEUE_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        let threads = connections.into_iter().map(|connection| {
            let waiting = Arc::clone(&waiting);
            std::thread::Builder::new().name("store-reader".into()).spawn(move || {
                while let Some(job) = next(&waiting) {
                    job(&connection);
                }
            })
        });
        Ok((Self { queue }, threads.collect::<std::io::Result<_>>()?))
    }

    /// Returns the result of `work`. May be cancelled at any await.
    pub(crate) async fn read<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            // The caller may have gone away.
            let _ = reply.send(work(connection));
        });
        self.queue.send(job).await.map_err(|_| Error::Stopped)?;
        answer.await.unwrap_or(Err(Error::Stopped))
    }
}

/// The thread that holds the lock waits for the next job, and releases the lock before it runs the job.
fn next(waiting: &Mutex<mpsc::Receiver<Job>>) -> Option<Job> {
    // The lock guards only a receiver, which a panic can't leave in a bad state.
    waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).blocking_recv()
}
