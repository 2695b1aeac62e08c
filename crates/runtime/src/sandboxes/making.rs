//! Which sandboxes are being created or changed by a live process, as known by the kernel.
//!
//! The servers and workers of a machine share rows. A row in state `creating` may be work in progress, or left by a
//! process that died; the two look alike. So the creator of a sandbox holds a lock on a file of its name, from before
//! its row exists until the row's state changes. The lock ends with the process, however it ends.
//!
//! In the same way, whoever pauses a sandbox, lets it rest or resumes it holds a lock on another file of its name: each of these is several
//! steps, and in between the files of a sandbox may exist only once.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;
use saggar_domain::SandboxId;

/// The directory of the locks, in the data directory.
const CREATING: &str = "creating";
/// The same for changes of whether a sandbox runs, is paused or rests.
const CHANGING: &str = "changing";

/// The directory of the locks.
#[derive(Debug)]
pub(super) struct Makers(PathBuf);

/// While this value lives, this process is creating one sandbox, or changing it.
#[derive(Debug)]
pub(crate) struct Making {
    path: PathBuf,
    _locked: File,
}

impl Makers {
    /// Opens the directory, creating it if missing.
    pub(super) fn open(data: &Path) -> io::Result<Self> {
        Self::open_named(data, CREATING)
    }

    /// The same for changes.
    pub(super) fn open_changes(data: &Path) -> io::Result<Self> {
        Self::open_named(data, CHANGING)
    }

    fn open_named(data: &Path, name: &str) -> io::Result<Self> {
        let directory = data.join(name);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(Self(directory))
    }

    /// Marks that this process is creating a sandbox. Must come before its row.
    pub(super) fn begin(&self, id: &SandboxId) -> io::Result<Making> {
        let made = self.lock(id, FlockOperation::LockExclusive)?;
        made.ok_or_else(|| io::Error::from(io::ErrorKind::WouldBlock))
    }

    /// The same without waiting: `None` while another process, or another task of this one, has it.
    pub(super) fn try_begin(&self, id: &SandboxId) -> io::Result<Option<Making>> {
        self.lock(id, FlockOperation::NonBlockingLockExclusive)
    }

    fn lock(&self, id: &SandboxId, how: FlockOperation) -> io::Result<Option<Making>> {
        let path = self.0.join(id.as_str());
        loop {
            let locked = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            match flock(&locked, how) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            // Whoever had it may have removed the file in between, or a sweeper that took it for a dead process's.
            if fstat(&locked)?.st_nlink > 0 {
                return Ok(Some(Making { path, _locked: locked }));
            }
        }
    }

    /// Removes the files of dead creators.
    pub(super) fn sweep(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.0)? {
            if let Some(id) = entry?.file_name().to_str().and_then(SandboxId::parse) {
                self.has(&id);
            }
        }
        Ok(())
    }

    /// Whether a live process is creating it. A dead one's file is removed.
    pub(super) fn has(&self, id: &SandboxId) -> bool {
        let path = self.0.join(id.as_str());
        let Ok(file) = File::options().write(true).open(&path) else { return false };
        // A shared lock: two concurrent checks must not take each other for the creator.
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                // While it is locked, for the same reason.
                remove(&path);
                false
            }
            Err(_) => true,
        }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn remove(path: &Path) {
    // A leftover is removed by the next check.
    let _ = std::fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_that_change_it_one_does_at_a_time() {
        let data = std::env::temp_dir().join(format!("saggar-changing-{}", std::process::id()));
        let (ours, theirs) = (Makers::open_changes(&data).unwrap(), Makers::open_changes(&data).unwrap());
        let id = SandboxId::from_random([1; 16]);
        let first = ours.try_begin(&id).unwrap().unwrap();
        assert!(theirs.try_begin(&id).unwrap().is_none());
        assert!(theirs.try_begin(&SandboxId::from_random([2; 16])).unwrap().is_some());
        drop(first);
        // Also after one that died and left its file.
        std::fs::write(ours.0.join(id.as_str()), "").unwrap();
        assert!(theirs.try_begin(&id).unwrap().is_some());
        assert_eq!(std::fs::read_dir(&ours.0).unwrap().count(), 0);
        std::fs::remove_dir_all(&data).unwrap();
    }

    #[test]
    fn it_is_made_for_as_long_as_its_maker_is_at_it() {
        let data = std::env::temp_dir().join(format!("saggar-making-{}", std::process::id()));
        let makers = Makers::open(&data).unwrap();
        let id = SandboxId::from_random([1; 16]);
        assert!(!makers.has(&id));
        let making = makers.begin(&id).unwrap();
        assert!(makers.has(&id) && makers.has(&id));
        drop(making);
        assert!(!makers.has(&id));
        // The state that a killed process leaves: the file exists, and is not locked.
        let left = || std::fs::read_dir(&makers.0).unwrap().count();
        std::fs::write(makers.0.join(id.as_str()), "").unwrap();
        assert!(!makers.has(&id));
        assert_eq!(left(), 0);
        std::fs::write(makers.0.join(id.as_str()), "").unwrap();
        let _making = makers.begin(&SandboxId::from_random([2; 16])).unwrap();
        makers.sweep().unwrap();
        assert_eq!(left(), 1);
        std::fs::remove_dir_all(&data).unwrap();
    }
}
