//! One process per data directory.
//!
//! SQLite would allow two processes, but then two servers would manage the same sandboxes. The lock is on a file
//! beside the database and ends with the process, however it ends. The pid in the file is only for the error message.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Maximum length of a pid that is read back.
const PID_LEN_MAX: u64 = 20;

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
    pub(crate) fn take(path: &Path) -> Result<Self, LockError> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(path).map_err(LockError::Io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(LockError::Held(read_pid(&mut file))),
            Err(errno) => return Err(LockError::Io(errno.into())),
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
    pid.is_some_and(|pid| Path::new(&format!("/proc/{pid}")).exists())
}
