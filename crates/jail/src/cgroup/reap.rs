//! Removing a leaf for certain: whatever still lives in it is killed first.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::sys::pause_briefly;

/// How long processes may take to die before we report that they didn't.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kills what is in a leaf and removes it, with the portions of single execs in it. A leaf that isn't there is removed already.
pub fn remove_leaf(leaf: &Path) -> io::Result<()> {
    match remove_alone(leaf) {
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
        other => return other,
    }
    thaw(leaf);
    for portion in portions(leaf)? {
        remove_busy(&portion)?;
    }
    remove_busy(leaf)
}

fn remove_alone(leaf: &Path) -> io::Result<()> {
    match fs::remove_dir(leaf) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn remove_busy(leaf: &Path) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match remove_alone(leaf) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::ResourceBusy || Instant::now() > deadline => {
                return Err(error);
            }
            Err(_) => {}
        }
        kill_all(leaf)?;
        // The kernel sends no event when a version 1 cgroup becomes empty.
        pause_briefly();
    }
}

/// Only we make directories in there: nothing inside a sandbox can.
fn portions(leaf: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    let entries = fs::read_dir(leaf)?.flatten();
    Ok(entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect())
}

/// What is frozen by version 1 dies only once it is thawed; so it is killed first and then let go. Other leaves have no such file.
fn thaw(leaf: &Path) {
    if leaf.join("freezer.state").exists() && kill_all(leaf).is_ok() {
        // If it can't be thawed its processes don't die, and that is told.
        let _ = fs::write(leaf.join("freezer.state"), "THAWED");
    }
}

/// Version 2 kills at one word; in version 1 each process is held by descriptor and looked up again, so that a reused number is never hit.
pub(super) fn kill_all(leaf: &Path) -> io::Result<()> {
    if fs::write(leaf.join("cgroup.kill"), "1").is_ok() {
        return Ok(());
    }
    for pid in members(leaf)? {
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if members(leaf)?.contains(&pid) {
            // Gone in the meantime is what we want.
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }
    Ok(())
}

fn members(leaf: &Path) -> io::Result<Vec<Pid>> {
    let text = fs::read_to_string(leaf.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok().and_then(Pid::from_raw)).collect())
}
