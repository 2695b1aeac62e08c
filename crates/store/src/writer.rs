//! The one thread that writes, and how many writes share a commit.
//!
//! What waits while a commit is under way is the next group: one transaction, so that a group costs one commit however many are in it. A
//! member is acknowledged after the commit that holds it, never before. A member that fails undoes itself alone: nearly none does, so a group
//! is tried without a savepoint for each, which cost more than the writes, and again with them when somebody has failed. Where the whole
//! transaction fails (a full disk rolls it back), each member is tried again alone, and only who can't be written hears of it.
//!
//! If the thread dies, its channel closes: who waits and whoever comes later gets [`Error::Stopped`], and nobody hangs.

use std::thread::JoinHandle;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;
use crate::fold::count_if_folded;
use crate::stuck::Turn;

/// Writes that may wait; more callers wait for a place among them.
const QUEUE_MAX: usize = 1024;
/// Most members of one commit: bounds how long the first waits for the last.
const GROUP_MAX: usize = 256;

/// What an acknowledged write survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// The death of the server at any moment. All that the state of sandboxes needs: a power cut ends every one of them anyway.
    #[default]
    Process,
    /// A power cut too: what people were told to write down, such as keys.
    Power,
}

impl Durability {
    /// As the pragma has it. In WAL mode NORMAL syncs at checkpoints alone, FULL at every commit as well.
    fn synchronous(self) -> &'static str {
        match self {
            Self::Process => "NORMAL",
            Self::Power => "FULL",
        }
    }
}

/// Hands writes to the thread.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    queue: mpsc::Sender<Box<dyn Job>>,
}

impl Writer {
    /// Starts the thread on its connection. Every commit is at least as durable as `floor`.
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

    /// Returns after the commit that holds the write. Dropped before that, the write may still be done.
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

    /// A write that nobody waits for and that may as well not happen, as when the queue is full.
    pub(crate) fn offer<F>(&self, work: F)
    where
        F: Fn(&Connection) -> Result<(), Error> + Send + 'static,
    {
        let job = Box::new(Write { work, durability: Durability::Process, outcome: None, reply: None });
        // Full or stopped: the caller said that it may be left out.
        let _ = self.queue.try_send(job);
    }
}

/// One write, whatever its result is.
trait Job: Send {
    fn durability(&self) -> Durability;
    /// Does it, within a transaction. May be called again after that was lost.
    fn attempt(&mut self, connection: &Connection) -> Result<(), Error>;
    /// Tells whoever waits.
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
            // Its own error says more than the transaction's.
            (Err(_), Some(Err(error))) => Err(error),
            (Err(error), _) => Err(error),
            (Ok(()), outcome) => outcome.expect("a commit is only made after every member was attempted"),
        };
        if let Some(reply) = self.reply {
            // Who asked has gone away; the write stands.
            let _ = reply.send(answer);
        }
    }
}

struct Committer {
    connection: Connection,
    turn: Turn,
    floor: Durability,
    /// What the connection is set to.
    set: Option<Durability>,
}

impl Committer {
    fn run(mut self, mut waiting: mpsc::Receiver<Box<dyn Job>>) {
        let mut group = Vec::with_capacity(GROUP_MAX);
        while waiting.blocking_recv_many(&mut group, GROUP_MAX) > 0 {
            match self.commit(&mut group) {
                Err(Failure::Within(_)) if group.len() > 1 => {
                    for job in group.drain(..) {
                        let mut alone = [job];
                        let committed = self.commit(&mut alone).map_err(Failure::into_error);
                        let [job] = alone;
                        job.settle(committed);
                    }
                }
                committed => {
                    let committed = committed.map_err(Failure::into_error);
                    for job in group.drain(..) {
                        job.settle(committed.clone());
                    }
                }
            }
        }
    }

    /// All members in one transaction. A failure means that none of them is written.
    fn commit(&mut self, group: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        let durability = group.iter().map(|job| job.durability()).max().unwrap_or_default().max(self.floor);
        self.begin(durability).map_err(Failure::Before)?;
        let mut done = self.attempt_all(group);
        if done.is_err() && group.len() > 1 {
            self.roll_back();
            self.begin(durability).map_err(Failure::Before)?;
            done = self.attempt_each(group);
        }
        let done = done.and_then(|()| Ok(self.connection.execute_batch("COMMIT")?));
        match done {
            Ok(()) => count_if_folded(&self.connection, &self.turn),
            Err(_) => self.roll_back(),
        }
        done.map_err(Failure::Within)
    }

    fn roll_back(&self) {
        if !self.connection.is_autocommit() {
            // If even this fails, the next BEGIN does too, and says why.
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

    /// Up to the first that fails, which may leave a half of itself.
    fn attempt_all(&self, group: &mut [Box<dyn Job>]) -> Result<(), Error> {
        group.iter_mut().try_for_each(|job| job.attempt(&self.connection))
    }

    /// All of them; who fails leaves nothing.
    fn attempt_each(&self, group: &mut [Box<dyn Job>]) -> Result<(), Error> {
        for job in group {
            self.connection.prepare_cached("SAVEPOINT member")?.execute([])?;
            if let Err(error) = job.attempt(&self.connection) {
                if self.connection.is_autocommit() {
                    // SQLite has rolled back everything, the members before this one too.
                    return Err(error);
                }
                self.connection.prepare_cached("ROLLBACK TO member")?.execute([])?;
            }
            self.connection.prepare_cached("RELEASE member")?.execute([])?;
        }
        Ok(())
    }
}

/// Why a group was not committed.
enum Failure {
    /// It could not begin: no member alone would fare better.
    Before(Error),
    /// It broke off on the way, by one member's doing or by how many they are.
    Within(Error),
}

impl Failure {
    fn into_error(self) -> Error {
        match self {
            Self::Before(error) | Self::Within(error) => error,
        }
    }
}

#[cfg(test)]
mod tests;
