//! The handle to an open store.
//!
//! Cheap to clone. Dropping the last handle waits for the threads: all queued writes are done, then the file is
//! closed and the data directory is free for the next process. The operations are defined beside their types.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use rusqlite::Connection;

use crate::error::Error;
use crate::lock::{self, Lock};
use crate::marker;
use crate::open::{self, OpenError, Opened, Settings};
use crate::readers::Readers;
use crate::stuck::Turn;
use crate::wal;
use crate::writer::{Durability, Writer};

#[derive(Clone, Debug)]
pub struct Store {
    inner: Arc<Inner>,
}

impl Store {
    /// Opens the store of a data directory; creates or migrates it if needed. One process at a time.
    pub fn open(data_directory: &Path) -> Result<Self, OpenError> {
        Self::open_with(data_directory, Settings::default())
    }

    pub fn is_in(data_directory: &Path) -> bool {
        open::database_in(data_directory).exists()
    }

    /// Opens the store beside the process that holds the lock, as a worker does. It must exist and have our version.
    /// SQLite serialises the writers, and appends to a run are fenced by its epoch.
    pub fn join(data_directory: &Path) -> Result<Self, OpenError> {
        Self::start(open::join(data_directory)?, Settings::default())
    }

    pub fn open_with(data_directory: &Path, settings: Settings) -> Result<Self, OpenError> {
        Self::start(open::open(data_directory)?, settings)
    }

    fn start(opened: Opened, settings: Settings) -> Result<Self, OpenError> {
        let Opened { lock, directory, writer, readers } = opened;
        let (writer, writing) =
            Writer::start(writer, Turn::new(&directory), settings.durability).map_err(OpenError::thread)?;
        let (readers, reading) = Readers::start(readers).map_err(OpenError::thread)?;
        let queues = Some(Queues { writer, readers });
        Ok(Self { inner: Arc::new(Inner { queues, reading, writing: Some(writing), directory, lock }) })
    }

    pub(crate) async fn write<T, F>(&self, durability: Durability, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> Result<T, Error> + Send + 'static,
    {
        self.queues().writer.write(durability, work).await
    }

    pub(crate) fn offer<F>(&self, work: F)
    where
        F: Fn(&Connection) -> Result<(), Error> + Send + 'static,
    {
        self.queues().writer.offer(work);
    }

    pub(crate) async fn read<T, F>(&self, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    {
        self.queues().readers.read(work).await
    }

    fn queues(&self) -> &Queues {
        self.inner.queues.as_ref().expect("only `drop` takes it, and then no handle is left")
    }
}

#[derive(Debug)]
struct Queues {
    writer: Writer,
    readers: Readers,
}

#[derive(Debug)]
struct Inner {
    queues: Option<Queues>,
    reading: Vec<JoinHandle<()>>,
    writing: Option<JoinHandle<()>>,
    directory: PathBuf,
    /// Dropped last, after the connections are closed. `None` in a process that has joined another.
    lock: Option<Lock>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(Queues { writer, readers }) = self.queues.take() else { return };
        // A thread ends when its queue is closed and empty. Readers end first: the last connection to close
        // checkpoints the log into the file, and only the writer's can do that.
        drop(readers);
        for thread in self.reading.drain(..) {
            // A thread that panicked has nothing left to wait for.
            let _ = thread.join();
        }
        // The last process to close checkpoints the log and removes it. That is a worker only if its server is gone.
        if self.lock.is_some() || !lock::is_held(&self.directory.join(open::LOCK)) {
            // If this fails, the log can't be removed either.
            let _ = marker::expect_no_log(&self.directory);
        }
        drop(writer);
        if let Some(thread) = self.writing.take() {
            // As above: a thread that panicked has nothing left to wait for.
            let _ = thread.join();
        }
        // The server ended in the meantime and left the checkpoint to us.
        if wal::is_there(&open::database_in(&self.directory)).is_ok_and(|is_there| !is_there) {
            // As above: if this fails, the log can't be removed either.
            let _ = marker::expect_no_log(&self.directory);
        }
    }
}
