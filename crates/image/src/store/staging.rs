//! Where an import writes until it is complete. Removed when it is dropped, whatever happened.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, unlinkat};
use rustix::rand::{GetRandomFlags, getrandom};
use saggar_domain::Problem;

use super::{Store, made};
use crate::failure::storage;

pub(crate) struct Staging {
    parent: OwnedFd,
    name: String,
    directory: OwnedFd,
}

impl Staging {
    pub(super) fn new(store: &Store) -> Result<Self, Problem> {
        let fail = |errno| storage("an import can't begin", errno);
        let name = random_name().map_err(fail)?;
        let directory = made(store.staging.as_fd(), Path::new(&name)).map_err(fail)?;
        let parent = store.staging.try_clone().map_err(|error| storage("an import can't begin", error))?;
        Ok(Self { parent, name, directory })
    }

    pub(super) fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// A directory in it.
    pub(crate) fn make(&self, name: &str) -> Result<OwnedFd, Problem> {
        made(self.directory.as_fd(), Path::new(name)).map_err(|errno| storage("an import can't begin", errno))
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // If this fails, the next import or `saggar template gc` removes it.
        let _ = remove_tree(&self.parent, &self.name);
    }
}

/// A name that no other process uses.
pub(super) fn random_name() -> Result<String, rustix::io::Errno> {
    let mut bytes = [0; 16];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Removes a directory and everything in it, or a file, without following links.
pub(super) fn remove_tree(parent: &OwnedFd, name: &str) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    match unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(rustix::io::Errno::ISDIR | rustix::io::Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    // The standard library removes relative to descriptors and follows no link; the first step goes through ours.
    std::fs::remove_dir_all(format!("/proc/self/fd/{}/{name}", parent.as_raw_fd()))
}
