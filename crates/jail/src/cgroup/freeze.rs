//! Freezing: everything in a sandbox stops where it is, and goes on later as if nothing had been.
//!
//! Version 2 freezes any cgroup and kills what is frozen. Version 1 needs the freezer's hierarchy, and what is frozen there dies only
//! when it is thawed.

use std::io;
use std::time::{Duration, Instant};

use super::group::{Group, Leaf, field, read};
use super::reap::kill_all;
use crate::sys::pause_briefly;

/// How long processes may take to stop. One that waits for a hung disk doesn't.
const PATIENCE: Duration = Duration::from_secs(2);

impl Group {
    /// Whether [`Group::freeze`] can work.
    pub fn is_freezable(&self) -> bool {
        self.freezer().is_some()
    }

    /// Stops everything in it. When that fails, everything goes on.
    pub fn freeze(&self) -> io::Result<()> {
        let leaf = self.freezer().ok_or(io::ErrorKind::Unsupported)?;
        leaf.set_frozen(true)?;
        let deadline = Instant::now() + PATIENCE;
        while !leaf.is_frozen() {
            if Instant::now() > deadline {
                // The time-out is what is told.
                let _ = leaf.set_frozen(false);
                return Err(io::ErrorKind::TimedOut.into());
            }
            pause_briefly();
            if !leaf.is_v2 {
                // A process that was forked meanwhile is caught by asking again.
                leaf.set_frozen(true)?;
            }
        }
        Ok(())
    }

    /// Lets everything go on.
    pub fn thaw(&self) -> io::Result<()> {
        self.freezer().map_or(Ok(()), |leaf| leaf.set_frozen(false))
    }

    /// Kills everything that is frozen, without letting any of it run on.
    pub fn kill_frozen(&self) -> io::Result<()> {
        let Some(leaf) = self.freezer() else { return Ok(()) };
        kill_all(&leaf.path)?;
        leaf.set_frozen(false)
    }

    fn freezer(&self) -> Option<&Leaf> {
        self.leaves.iter().find(|leaf| leaf.is_v2).or_else(|| {
            // Made for nothing else.
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
