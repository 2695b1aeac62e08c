//! The threads that read: each with a connection of its own that can't write, all fed from one queue.
//!
//! In WAL mode a reader sees the last commit before it began, and neither waits for the writer nor holds it up.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;

/// Reads at once. They are short and come from memory; more threads than this only wait for the same cores.
pub(crate) const READERS: usize = 4;
/// Reads that may wait; more callers wait for a place among them.
const QUEUE_MAX: usize = 1024;

type Job = Box<dyn FnOnce(&Connection) + Send>;

/// Hands reads to the threads.
#[derive(Clone, Debug)]
pub(crate) struct Readers {
    queue: mpsc::Sender<Job>,
}

impl Readers {
    /// Starts a thread for each connection.
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

    /// Returns what `work` read. May be dropped at any await.
    pub(crate) async fn read<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |connection| {
            // Who asked may have gone away.
            let _ = reply.send(work(connection));
        });
        self.queue.send(job).await.map_err(|_| Error::Stopped)?;
        answer.await.unwrap_or(Err(Error::Stopped))
    }
}

/// Whoever holds the lock waits for the next job, and lets go of it before doing that.
fn next(waiting: &Mutex<mpsc::Receiver<Job>>) -> Option<Job> {
    // A lock poisoned by a panic here guards a receiver that is as good as before.
    waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).blocking_recv()
}
