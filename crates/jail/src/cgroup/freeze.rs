//! Freezing: all processes of a sandbox stop, and continue later as if nothing had happened.
//!
//! Cgroup v2 can freeze any cgroup, and kill frozen processes. Cgroup v1 needs the freezer hierarchy, and processes
//! frozen there die only when they are thawed.

use std::io;
use std::time::{Duration, Instant};

use super::group::{Group, Leaf, field, read};
use super::reap::kill_all;
use crate::sys::pause_briefly;

/// How long processes may take to stop. A process that waits for a hung disk doesn't stop.
const PATIENCE: Duration = Duration::from_secs(2);

impl Group {
    /// Whether [`Group::freeze`] can work.
    pub fn is_freezable(&self) -> bool {
        self.freezer().is_some()
    }

    /// Stops all processes. On failure, all of them continue.
    pub fn freeze(&self) -> io::Result<()> {
        let leaf = self.freezer().ok_or(io::ErrorKind::Unsupported)?;
        leaf.set_frozen(true)?;
        let deadline = Instant::now() + PATIENCE;
        while !leaf.is_frozen() {
            if Instant::now() > deadline {
                // The time-out is the error to report.
                let _ = leaf.set_frozen(false);
                return Err(io::ErrorKind::TimedOut.into());
            }
            pause_briefly();
            if !leaf.is_v2 {
                // Asking again catches a process that was forked in the meantime.
                leaf.set_frozen(true)?;
            }
        }
        Ok(())
    }

    pub fn thaw(&self) -> io::Result<()> {
        self.freezer().map_or(Ok(()), |leaf| leaf.set_frozen(false))
    }

    /// Kills all frozen processes without letting any of them continue.
    pub fn kill_frozen(&self) -> io::Result<()> {
        let Some(leaf) = self.freezer() else { return Ok(()) };
        kill_all(&leaf.path)?;
        leaf.set_frozen(false)
    }

    fn freezer(&self) -> Option<&Leaf> {
        self.leaves.iter().find(|leaf| leaf.is_v2).or_else(|| {
            // This leaf was made only for freezing.
            self.leaves.iter().find(|leaf| leaf.controllers.is_empty())
        })
    }
}

impl Leaf {
    fn set_frozen(&self, is_frozen: bool) -> io::Result<()> {
        match (self.is_v2, is_frozen) {
            (true, is_frozen) => self.write("cgroup.freeze", u8::from(is_frozen)),
            (false, true) => self.write("freezer.state", "FROZEN"),
            (false, false) => self.write("freezer.state", "THAWED"),
        }
    }

    fn is_frozen(&self) -> bool {
        if self.is_v2 {
            field(&self.path, "cgroup.events", "frozen") == Some(1)
        } else {
            read(&self.path, "freezer.state").is_some_and(|state| state.trim() == "FROZEN")
        }
    }
}
