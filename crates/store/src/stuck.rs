//! Kills a worker that was stopped in the middle of a commit: it would keep SQLite's write lock and block all other
//! writers.
//!
//! The lock is a record lock on the index of the log, and the kernel reports its owner. Only a process that holds a
//! lock in `workers/` is one of our workers, and only a stopped one is killed, so a slow disk kills no worker.
//! Killing it loses nothing that was acknowledged: its transaction was not committed, and its runs are recovered like
//! those of any dead worker. A stopped server and an operator's shell are left alone.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::Error;
use crate::{open, wal};

/// Directory in the data directory where each worker holds a lock on a file of its name.
pub const WORKERS: &str = "workers";
/// The byte of the index that a writer locks.
const WRITE_LOCK: u64 = 120;
/// How often a waiting writer retries.
const TURN: Duration = Duration::from_micros(500);
/// How long a writer waits before it checks which process blocks it. A worker that is seen stopped twice is killed.
const ROUND: Duration = Duration::from_millis(500);
/// How long a writer waits in total.
const PATIENCE: Duration = Duration::from_secs(5);

/// Starts write transactions, and makes sure that a stopped worker doesn't block them.
#[derive(Debug)]
pub(crate) struct Turn {
    directory: PathBuf,
}

impl Turn {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn begin(&self, connection: &Connection) -> Result<(), Error> {
        let begun = Instant::now();
        let mut stopped = None;
        loop {
            match connection.execute_batch("BEGIN IMMEDIATE").map_err(Error::from) {
                Err(Error::Busy) if begun.elapsed() < PATIENCE => stopped = self.look(stopped),
                other => return other,
            }
        }
    }

    /// The blocking process, if it is a stopped worker. The second time it is killed.
    fn look(&self, before: Option<Process>) -> Option<Process> {
        let found = self.holder().filter(|process| process.is_stopped());
        if found.is_none() || found != before {
            return found;
        }
        let process = found?;
        let pid = Pid::from_raw(i32::try_from(process.pid).ok()?)?;
        // From here on the pid can't be reused; check once more that it still is the same process.
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        if self.holder() != Some(process) || !process.is_stopped() {
            return None;
        }
        match pidfd_send_signal(&handle, Signal::KILL) {
            Ok(()) => tracing::warn!(pid = process.pid, "killed a worker that was stopped in the middle of a commit"),
            Err(error) => {
                tracing::error!(pid = process.pid, %error, "a stopped worker holds the store's write lock and can't be killed");
            }
        }
        None
    }

    /// The worker that has the write lock.
    fn holder(&self) -> Option<Process> {
        let inode = |path: &Path| std::fs::metadata(path).ok().map(|found| found.ino());
        let index = inode(&wal::beside(&open::database_in(&self.directory), "-shm"))?;
        let server = inode(&self.directory.join(open::LOCK));
        let workers: BTreeSet<u64> = std::fs::read_dir(self.directory.join(WORKERS))
            .ok()?
            .filter_map(|entry| entry.ok()?.metadata().ok().map(|found| found.ino()))
            .collect();
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        let locks: Vec<Held> = locks.lines().filter_map(Held::parse).collect();
        let writer = locks.iter().find(|lock| lock.is_record && lock.inode == index && lock.covers(WRITE_LOCK))?.pid;
        let holds = |inode: u64| locks.iter().any(|lock| !lock.is_record && lock.pid == writer && lock.inode == inode);
        let is_worker = workers.iter().any(|worker| holds(*worker)) && !server.is_some_and(holds);
        // The pid is 0 if the holder is in another pid namespace.
        (is_worker && writer != 0 && writer != std::process::id()).then(|| Process::find(writer))?
    }
}

/// Whether any worker has this store open.
pub(crate) fn is_any_worker_alive(directory: &Path) -> std::io::Result<bool> {
    let entries = match std::fs::read_dir(directory.join(WORKERS)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        entries => entries?,
    };
    for entry in entries {
        let file = std::fs::File::open(entry?.path())?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// SQLite's own backoff doubles up to a tenth of a second, and so loses most attempts to a writer that returns at
/// once: a worker beside a busy server would never write.
#[expect(
    clippy::disallowed_methods,
    reason = "SQLite has no notification for a released lock, so there is no event to wait for"
)]
pub(crate) fn wait_for_turn(tried: i32) -> bool {
    std::thread::sleep(TURN);
    TURN * tried.unsigned_abs() < ROUND
}

/// A process, distinguished from a later one with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: u32,
    started: u64,
}

impl Process {
    fn find(pid: u32) -> Option<Self> {
        let started = stat(pid)?.1;
        Some(Self { pid, started })
    }

    fn is_stopped(self) -> bool {
        stat(self.pid).is_some_and(|(state, started)| started == self.started && matches!(state, 'T' | 't'))
    }
}

/// The state and the start time of a process.
fn stat(pid: u32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The process name before it may contain anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// A lock in the kernel's list.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    /// A record lock, not one on a whole file.
    is_record: bool,
    pid: u32,
    inode: u64,
    first: u64,
    last: u64,
}

impl Held {
    /// Parses a line of a held exclusive lock; `None` for other locks, and for waiting requests.
    fn parse(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, kind, _, "WRITE", pid, file, first, last] = fields[..] else { return None };
        let is_record = match kind {
            "POSIX" => true,
            "FLOCK" => false,
            _ => return None,
        };
        let last = if last == "EOF" { u64::MAX } else { last.parse().ok()? };
        let inode = file.rsplit(':').next()?.parse().ok()?;
        Some(Self { is_record, pid: pid.parse().ok()?, inode, first: first.parse().ok()?, last })
    }

    fn covers(&self, byte: u64) -> bool {
        (self.first..=self.last).contains(&byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exclusive_locks_that_are_held_are_read() {
        let cases = [
            ("1: POSIX  ADVISORY  WRITE 812 fd:01:1835 120 121", Some((true, 812, 1835, 120, 121))),
            ("2: FLOCK  ADVISORY  WRITE 9 00:31:77 0 EOF", Some((false, 9, 77, 0, u64::MAX))),
            ("3: POSIX  ADVISORY  READ 812 fd:01:1835 124 124", None),
            ("1: -> POSIX  ADVISORY  WRITE 813 fd:01:1835 120 120", None),
            ("4: OFDLCK ADVISORY  WRITE -1 fd:01:1835 120 120", None),
            ("", None),
        ];
        for (line, expected) in cases {
            let expected =
                expected.map(|(is_record, pid, inode, first, last)| Held { is_record, pid, inode, first, last });
            assert_eq!(Held::parse(line), expected, "{line}");
        }
    }
}
