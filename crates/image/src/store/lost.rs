//! What a loss of power leaves of snapshots for forks. They aren't synced, because no boot of the host outlives them; so their files may be empty
//! or full of zeroes afterwards.
//!
//! Nothing is removed on a guess: files that were synced before they got their names never look so.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, fsync, openat, unlinkat};
use rustix::io::Errno;
use saggar_domain::{Problem, SNAPSHOT_RECORD_BYTES_MAX, SnapshotId};

use super::snapshot::file_of;
use super::{Lock, Store, listed};
use crate::failure::storage;

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Missing,
    Lost,
    Written,
}

impl Store {
    /// Removes snapshots whose name or record is lost, and says which. A collection removes what they led to.
    pub fn remove_lost_snapshots(&self) -> Result<Vec<SnapshotId>, Problem> {
        let mut lost = Vec::new();
        for name in listed(&self.names)? {
            let Some(id) = SnapshotId::parse(&name) else { continue };
            let is_lost = match content(&self.names, &name_of(&id))? {
                Content::Missing => false,
                Content::Lost => true,
                // The record is written first, and removed last.
                Content::Written => content(&self.snapshots, &file_of(&id))? != Content::Written,
            };
            if is_lost {
                self.remove_lost(&id)?;
                lost.push(id);
            }
        }
        Ok(lost)
    }

    fn remove_lost(&self, id: &SnapshotId) -> Result<(), Problem> {
        {
            let _names = self.locked(Lock::Names, FlockOperation::LockExclusive)?;
            match unlinkat(&self.names, name_of(id), AtFlags::empty()) {
                // Somebody has removed it meanwhile.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(unremovable(errno)),
            }
            match unlinkat(&self.names, id.as_str(), AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(errno) => return Err(unremovable(errno)),
            }
            fsync(&self.names).map_err(unremovable)?;
        }
        self.forget_snapshot(id)
    }
}

fn name_of(id: &SnapshotId) -> String {
    let name = id.template_name();
    format!("{}/{}", name.name(), name.tag())
}

fn content(directory: &OwnedFd, path: &str) -> Result<Content, Problem> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match openat(directory, path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(Content::Missing),
        Err(errno) => return Err(storage("a snapshot can't be read", errno)),
    };
    let mut bytes = Vec::new();
    let read = file.take(SNAPSHOT_RECORD_BYTES_MAX).read_to_end(&mut bytes);
    read.map_err(|error| storage("a snapshot can't be read", error))?;
    // An empty file too.
    Ok(if bytes.iter().all(|byte| *byte == 0) { Content::Lost } else { Content::Written })
}

fn unremovable(errno: Errno) -> Problem {
    storage("the rest of a snapshot can't be removed", errno)
}
