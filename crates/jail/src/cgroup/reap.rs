//! Removing a leaf for certain: whatever still lives in it is killed first.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::sys::pause_briefly;

/// How long processes may take to die before we report that they didn't.
const PATIENCE: Duration = Duration::from_secs(10);

/// Kills what is in a leaf and removes it. A leaf that isn't there is removed already.
pub fn remove_leaf(leaf: &Path) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fs::remove_dir(leaf) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
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

/// Version 2 kills at one word; in version 1 each process is held by descriptor and looked up again, so that a reused number is never hit.
fn kill_all(leaf: &Path) -> io::Result<()> {
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
