//! A watchdog: kills the timed process if it hangs, so that an unattended benchmark ends.
//!
//! It costs the timed path two stores to memory. It has a pid only while the process has not been waited for, so the
//! pid can't be reused.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::signal::{Signal, send_signal};

/// No contender takes a hundredth of this.
const PATIENCE: Duration = Duration::from_secs(20);
/// Stands for a pid when nothing is watched.
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
    /// Incremented for each process, to tell a hanging process from the next one with the same pid.
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

    /// Watches this process until [`Watchdog::leave`].
    pub fn watch(&self, pid: u32) {
        self.watched.generation.fetch_add(1, SeqCst);
        self.watched.pid.store(pid, SeqCst);
    }

    pub fn leave(&self) {
        self.watched.pid.store(NOBODY, SeqCst);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It holds no state; if it panicked, that was printed.
            let _ = thread.join();
        }
    }
}
