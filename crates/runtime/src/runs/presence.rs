//! Presence: which workers of this machine are alive, as known by the kernel.
//!
//! Each worker holds a lock on a file of its name. The lock ends with the process, however it ends. So a process that
//! can take it knows that the worker is dead, and its runs are free at once. A lease only has to cover a worker that
//! is alive but does nothing, and can be long.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use saggar_store::{Holder, WORKERS};

/// A worker is present while this value lives.
#[derive(Debug)]
pub(super) struct Presence {
    directory: PathBuf,
    path: PathBuf,
    _locked: File,
}

impl Presence {
    /// Announces a worker. The file gets its name only once it is locked, so that a starting worker isn't mistaken
    /// for a dead one.
    pub(super) fn show(data: &Path, holder: &Holder) -> io::Result<Self> {
        let directory = data.join(WORKERS);
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let (path, unfinished) = (directory.join(holder.as_str()), directory.join(format!(".{}", holder.as_str())));
        let locked = File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        flock(&locked, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(&unfinished, &path)?;
        Ok(Self { directory, path, _locked: locked })
    }

    pub(super) fn dead(&self) -> io::Result<Vec<Holder>> {
        let mut dead = Vec::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let holder = name.to_str().filter(|name| !name.starts_with('.')).and_then(Holder::parse);
            let Some(holder) = holder else { continue };
            let path = self.directory.join(holder.as_str());
            if path == self.path {
                continue;
            }
            // Another worker removed it in the meantime.
            let Ok(file) = File::options().write(true).open(&path) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                dead.push(holder);
            }
        }
        Ok(dead)
    }

    /// Removes the file of this worker, which has released its runs. Without this, another worker releases them when
    /// it finds the file.
    pub(super) fn leave(self, holder: &Holder) {
        self.bury(holder);
    }

    /// Removes the file of a dead worker, whose runs are free now.
    pub(super) fn bury(&self, holder: &Holder) {
        if let Err(error) = std::fs::remove_file(self.directory.join(holder.as_str()))
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(error = %error, "removing the lock of a dead worker failed");
        }
    }
}
