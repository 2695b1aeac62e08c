//! Which sandboxes are being made now, and by a process that lives: told by the kernel.
//!
//! Servers and workers of a machine share rows. A row that says `creating` is somebody's work, or what somebody who died has left; the two
//! look alike. So whoever makes a sandbox holds a lock on a file of its name, from before its row is there until that says something
//! else. The lock goes with the process, however that ends.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock, fstat};
use saggar_domain::SandboxId;

/// The directory of the locks, in the data directory.
const CREATING: &str = "creating";

/// Where the locks are.
#[derive(Debug)]
pub(super) struct Makers(PathBuf);

/// One sandbox is being made for as long as this lives.
#[derive(Debug)]
pub(super) struct Making {
    path: PathBuf,
    _locked: File,
}

impl Makers {
    /// Opens the directory, making it if it isn't there.
    pub(super) fn open(data: &Path) -> io::Result<Self> {
        let directory = data.join(CREATING);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(Self(directory))
    }

    /// Says that this process makes a sandbox. Comes before its row.
    pub(super) fn begin(&self, id: &SandboxId) -> io::Result<Making> {
        let path = self.0.join(id.as_str());
        loop {
            let locked = File::options().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
            flock(&locked, FlockOperation::LockExclusive)?;
            // Whoever sweeps may have come between the two, and taken it for a dead one's.
            if fstat(&locked)?.st_nlink > 0 {
                return Ok(Making { path, _locked: locked });
            }
        }
    }

    /// Removes what makers that died have left.
    pub(super) fn sweep(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.0)? {
            if let Some(id) = entry?.file_name().to_str().and_then(SandboxId::parse) {
                self.has(&id);
            }
        }
        Ok(())
    }

    /// Whether a process that lives is making it. What one that died has left is removed.
    pub(super) fn has(&self, id: &SandboxId) -> bool {
        let path = self.0.join(id.as_str());
        let Ok(file) = File::options().write(true).open(&path) else { return false };
        // Shared: two who ask at once must not take each other for its maker.
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
    // One that stays is removed by whoever asks for it next.
    let _ = std::fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // As a process that was killed leaves it: the file is there, and nobody holds it.
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
