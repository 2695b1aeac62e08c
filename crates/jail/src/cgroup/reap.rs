//! Removes a leaf reliably: processes that still live in it are killed first.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::sys::pause_briefly;

/// How long processes may take to die before this fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kills the processes in a leaf and removes it, with the portions of single execs in it. Succeeds if the leaf doesn't
/// exist.
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

/// Only the supervisor creates directories in there: nothing inside a sandbox can.
fn portions(leaf: &Path) -> io::Result<Vec<std::path::PathBuf>> {
    let entries = fs::read_dir(leaf)?.flatten();
    Ok(entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect())
}

/// Processes frozen by cgroup v1 die only once they are thawed, so they are killed first and then thawed. Other leaves
/// lack this file.
fn thaw(leaf: &Path) {
    if leaf.join("freezer.state").exists() && kill_all(leaf).is_ok() {
        // If it can't be thawed, its processes don't die, and that is reported.
        let _ = fs::write(leaf.join("freezer.state"), "THAWED");
    }
}

/// Cgroup v2 kills with a single write. In v1 each process is opened by pidfd and looked up again, so that a reused pid
/// is never hit.
pub(super) fn kill_all(leaf: &Path) -> io::Result<()> {
    if fs::write(leaf.join("cgroup.kill"), "1").is_ok() {
        return Ok(());
    }
    for pid in members(leaf)? {
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if members(leaf)?.contains(&pid) {
            // A process that is already gone is fine.
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    }
    Ok(())
}

fn members(leaf: &Path) -> io::Result<Vec<Pid>> {
    let text = fs::read_to_string(leaf.join("cgroup.procs"))?;
    Ok(text.lines().filter_map(|line| line.parse().ok().and_then(Pid::from_raw)).collect())
}
