//! A watchdog: ends the one process being timed if it hangs, so that a benchmark left alone comes to an end.
//!
//! It costs the timed path two stores to memory. A pid is given to it only while its process is not yet waited for, so it
//! can't be another's.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::signal::{Signal, send_signal};

/// No contender takes a hundredth of this.
const PATIENCE: Duration = Duration::from_secs(20);
/// In the place of a pid: there is nothing to watch.
const NOBODY: u32 = 0;

/// Watches from a thread, until it is dropped.
#[derive(Debug)]
pub struct Watchdog {
    watched: Arc<Watched>,
    /// Dropped to end the thread.
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Watched {
    pid: AtomicU32,
    /// Counts up with each process, so that one that hangs is told from the next with the same pid.
    generation: AtomicU32,
}

impl Watchdog {
    pub fn start() -> Result<Self> {
        let watched = Arc::new(Watched { pid: AtomicU32::new(NOBODY), generation: AtomicU32::new(0) });
        let (stop, stopped) = sync_channel(1);
        let theirs = Arc::clone(&watched);
        let patrol = move || {
            let mut last_seen = (NOBODY, 0);
            while stopped.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let seen = (theirs.pid.load(SeqCst), theirs.generation.load(SeqCst));
                if seen.0 != NOBODY && seen == last_seen {
                    eprintln!("bench: a run takes longer than {} s; killing it", PATIENCE.as_secs());
                    if let Err(error) = send_signal(Signal::Kill, &[seen.0]) {
                        eprintln!("bench: {error:#}");
                    }
                }
                last_seen = seen;
            }
        };
        let thread = std::thread::Builder::new().name("watchdog".into()).spawn(patrol).context("starting a thread")?;
        Ok(Self { watched, stop: Some(stop), thread: Some(thread) })
    }

    /// From now on this process is watched, until [`Watchdog::leave`].
    pub fn watch(&self, pid: u32) {
        self.watched.generation.fetch_add(1, SeqCst);
        self.watched.pid.store(pid, SeqCst);
    }

    /// Nothing is watched any more.
    pub fn leave(&self) {
        self.watched.pid.store(NOBODY, SeqCst);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It holds nothing of worth; if it panicked, that was printed.
            let _ = thread.join();
        }
    }
}
