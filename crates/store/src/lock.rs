//! One process per data directory.
//!
//! SQLite would allow two processes, but then two servers would manage the same sandboxes. The lock is on a file
//! beside the database and ends with the process, however it ends.
//!
//! A process that was killed while it started another one leaves the lock to that one, until it begins to run its own
//! program. So the lock of a dead process is waited for, for a short time. The pid in the file says whose it is.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Maximum length of a pid that is read back.
const PID_LEN_MAX: u64 = 20;

/// How long the lock of a dead process is waited for.
const ORPHAN_MAX: Duration = Duration::from_secs(5);
const ORPHAN_PAUSE: Duration = Duration::from_millis(5);

/// Held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held for its lock alone")] File);

#[derive(Debug)]
pub(crate) enum LockError {
    /// Another process has the lock; its pid, if known.
    Held(Option<u32>),
    Io(std::io::Error),
}

impl Lock {
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing tells when a lock is let go, and waiting in flock has no deadline"
    )]
    pub(crate) fn take(path: &Path) -> Result<Self, LockError> {
        let begun = Instant::now();
        Self::take_or_wait(path, || {
            std::thread::sleep(ORPHAN_PAUSE);
            begun.elapsed() < ORPHAN_MAX
        })
    }

    /// `wait` is called while a dead process has the lock. It returns whether to try again.
    fn take_or_wait(path: &Path, mut wait: impl FnMut() -> bool) -> Result<Self, LockError> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path).map_err(LockError::Io)?;
        while let Err(errno) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if errno != Errno::WOULDBLOCK {
                return Err(LockError::Io(errno.into()));
            }
            file.rewind().map_err(LockError::Io)?;
            let pid = read_pid(&mut file);
            if pid.is_none_or(is_alive) || !wait() {
                return Err(LockError::Held(pid));
            }
        }
        // A disk too full for a pid is no reason to fail.
        let _ = write_pid(&mut file);
        Ok(Self(file))
    }
}

fn write_pid(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(std::process::id().to_string().as_bytes())
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(PID_LEN_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Whether the process that last took the lock is alive. Only a guess: pids are reused.
pub(crate) fn is_held(path: &Path) -> bool {
    let pid = File::open(path).ok().and_then(|mut file| read_pid(&mut file));
    pid.is_some_and(is_alive)
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_in(directory: &Path, pid: u32) -> (std::path::PathBuf, File) {
        let path = directory.join("lock");
        std::fs::write(&path, pid.to_string()).unwrap();
        let file = File::open(&path).unwrap();
        flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
        (path, file)
    }

    #[test]
    fn the_lock_of_a_dead_process_is_waited_for_and_that_of_a_live_one_is_not() {
        let directory = std::env::temp_dir().join(format!("saggar-lock-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let mut dead = std::process::Command::new("/bin/true").spawn().unwrap();
        dead.wait().unwrap();

        let (path, file) = held_in(&directory, dead.id());
        let mut file = Some(file);
        let taken = Lock::take_or_wait(&path, || file.take().is_some());
        assert!(taken.is_ok() && file.is_none(), "it was let go while this waited");
        let other = flock(File::open(&path).unwrap(), FlockOperation::NonBlockingLockExclusive);
        assert_eq!(other, Err(Errno::WOULDBLOCK), "and is really taken");
        drop(taken);

        let (path, file) = held_in(&directory, dead.id());
        let refused = Lock::take_or_wait(&path, || false);
        drop(file);
        assert!(matches!(refused, Err(LockError::Held(Some(pid))) if pid == dead.id()), "not for ever: {refused:?}");

        let (path, _file) = held_in(&directory, std::process::id());
        let refused = Lock::take_or_wait(&path, || panic!("its process is alive"));
        assert!(matches!(refused, Err(LockError::Held(_))), "{refused:?}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
