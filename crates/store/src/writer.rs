//! The writer thread, and how writes share commits.
//!
//! Writes that arrive during a commit form the next group: one transaction, so that a group costs one commit whatever
//! its size. A write is acknowledged after the commit that contains it, never before. A failed write is rolled back
//! alone. Failures are rare, so a group is first tried without savepoints, which cost more than the writes, and
//! repeated with savepoints if a write fails. If the whole transaction fails (a full disk rolls it back), each write
//! is retried alone, and only those that fail again report an error.
//!
//! If the thread dies, its channel closes: waiting and later callers get [`Error::Stopped`], and none hangs.

use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;
use crate::fold::count_if_folded;
use crate::stuck::Turn;

/// Maximum number of queued writes; further callers wait for a free slot.
const QUEUE_MAX: usize = 1024;
/// Maximum number of writes per commit: bounds how long the first waits for the last.
const GROUP_MAX: usize = 256;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Survives the death of the server at any moment. This is enough for the state of sandboxes: a power cut ends
    /// all of them anyway.
    #[default]
    Process,
    /// Survives a power cut too: for what clients rely on later, such as keys.
    Power,
}

impl Durability {
    /// The value of SQLite's pragma. In WAL mode NORMAL syncs only at checkpoints, FULL also at every commit.
    fn synchronous(self) -> &'static str {
        match self {
            Self::Process => "NORMAL",
            Self::Power => "FULL",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Writer {
    queue: mpsc::Sender<Box<dyn Job>>,
}

impl Writer {
    /// Starts the thread. Every commit is at least as durable as `floor`.
    pub(crate) fn start(
        connection: Connection,
        turn: Turn,
        floor: Durability,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let thread = std::thread::Builder::new()
            .name("store-writer".into())
            .spawn(move || Committer { connection, turn, floor, set: None }.run(waiting))?;
        Ok((Self { queue }, thread))
    }

    /// Returns after the commit that contains the write. If cancelled before that, the write may still be done.
    pub(crate) async fn write<T, F>(&self, durability: Durability, work: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> Result<T, Error> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Write { work, durability, outcome: None, reply: Some(reply) });
        self.queue.send(job).await.map_err(|_| Error::Stopped)?;
        answer.await.unwrap_or(Err(Error::Stopped))
    }

    /// Queues an optional write without waiting. It is dropped if the queue is full.
    pub(crate) fn offer<F>(&self, work: F)
    where
        F: Fn(&Connection) -> Result<(), Error> + Send + 'static,
    {
        let job = Box::new(Write { work, durability: Durability::Process, outcome: None, reply: None });
        // Full or stopped: the write is optional.
        let _ = self.queue.try_send(job);
    }
}

/// One write, independent of its result type.
trait Job: Send {
    fn durability(&self) -> Durability;
    /// Does the write, within a transaction. May be called again after the transaction was rolled back.
    fn attempt(&mut self, connection: &Connection) -> Result<(), Error>;
    /// Reports the result to the caller.
    fn settle(self: Box<Self>, commit: Result<(), Error>);
}

struct Write<T, F> {
    work: F,
    durability: Durability,
    outcome: Option<Result<T, Error>>,
    reply: Option<oneshot::Sender<Result<T, Error>>>,
}

impl<T, F> Job for Write<T, F>
where
    T: Send,
    F: Fn(&Connection) -> Result<T, Error> + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn attempt(&mut self, connection: &Connection) -> Result<(), Error> {
        let outcome = (self.work)(connection);
        let result = outcome.as_ref().map(|_| ()).map_err(Clone::clone);
        self.outcome = Some(outcome);
        result
    }

    fn settle(self: Box<Self>, commit: Result<(), Error>) {
        let answer = match (commit, self.outcome) {
            // Its own error is more specific than the transaction's.
            (Err(_), Some(Err(error))) => Err(error),
            (Err(error), _) => Err(error),
            (Ok(()), outcome) => outcome.expect("a commit is only made after every member was attempted"),
        };
        if let Some(reply) = self.reply {
            // The caller has gone away; the write stands.
            let _ = reply.send(answer);
        }
    }
}

struct Committer {
    connection: Connection,
    turn: Turn,
    floor: Durability,
    /// The connection's current setting.
    set: Option<Durability>,
}

impl Committer {
    fn run(mut self, mut waiting: mpsc::Receiver<Box<dyn Job>>) {
        let mut group = Vec::with_capacity(GROUP_MAX);
        while waiting.blocking_recv_many(&mut group, GROUP_MAX) > 0 {
            match self.commit(&mut group) {
                Err(GroupFailure::Within(_)) if group.len() > 1 => {
                    for job in group.drain(..) {
                        let mut alone = [job];
                        let committed = self.commit(&mut alone).map_err(GroupFailure::into_error);
                        let [job] = alone;
                        job.settle(committed);
                    }
                }
                committed => {
                    let committed = committed.map_err(GroupFailure::into_error);
                    for job in group.drain(..) {
                        job.settle(committed.clone());
                    }
                }
            }
        }
    }

    /// All writes in one transaction. On failure none of them is written.
    fn commit(&mut self, group: &mut [Box<dyn Job>]) -> Result<(), GroupFailure> {
        let durability = group.iter().map(|job| job.durability()).max().unwrap_or_default().max(self.floor);
        self.begin(durability).map_err(GroupFailure::Before)?;
        let mut done = self.attempt_all(group);
        if done.is_err() && group.len() > 1 {
            self.roll_back();
            self.begin(durability).map_err(GroupFailure::Before)?;
            done = self.attempt_each(group);
        }
        let done = done.and_then(|()| Ok(self.connection.execute_batch("COMMIT")?));
        match done {
            Ok(()) => count_if_folded(&self.connection, &self.turn),
            Err(_) => self.roll_back(),
        }
        done.map_err(GroupFailure::Within)
    }

    fn roll_back(&self) {
        if !self.connection.is_autocommit() {
            // If even this fails, the next BEGIN fails too and reports why.
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }

    fn begin(&mut self, durability: Durability) -> Result<(), Error> {
        if self.set != Some(durability) {
            self.connection.pragma_update(None, "synchronous", durability.synchronous())?;
            self.set = Some(durability);
        }
        self.turn.begin(&self.connection)
    }

    /// Stops at the first failure, which may leave a partial write.
    fn attempt_all(&self, group: &mut [Box<dyn Job>]) -> Result<(), Error> {
        group.iter_mut().try_for_each(|job| job.attempt(&self.connection))
    }

    /// Does all of them; a failed one leaves nothing.
    fn attempt_each(&self, group: &mut [Box<dyn Job>]) -> Result<(), Error> {
        for job in group {
            self.connection.prepare_cached("SAVEPOINT member")?.execute([])?;
            if let Err(error) = job.attempt(&self.connection) {
                if self.connection.is_autocommit() {
                    // SQLite has rolled back the whole transaction, including the earlier writes.
                    return Err(error);
                }
                self.connection.prepare_cached("ROLLBACK TO member")?.execute([])?;
            }
            self.connection.prepare_cached("RELEASE member")?.execute([])?;
        }
        Ok(())
    }
}

enum GroupFailure {
    /// It could not begin: a single write would fail too.
    Before(Error),
    /// It failed halfway, because of one write or because of the size of the group.
    Within(Error),
}

impl GroupFailure {
    fn into_error(self) -> Error {
        match self {
            Self::Before(error) | Self::Within(error) => error,
        }
    }
}

#[cfg(test)]
mod tests;
