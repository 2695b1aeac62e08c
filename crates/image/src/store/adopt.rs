//! Brings layers of another project's store into this one: the same files, by hard links, so that they take no room twice.
//!
//! Stored files never change, so it doesn't matter who has a link to one. Each store has its own records and removes its own links.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags, fchmod, fchown,
    fgetxattr, flistxattr, fsetxattr, fstat, futimens, linkat, openat, renameat_with, statat,
};
use rustix::io::Errno;
use saggar_domain::Problem;
use saggar_sandbox::{HeldTemplate, StoredLayer};

use super::build::Build;
use super::staging::random_name;
use super::{DIRECTORY, made};
use crate::failure::storage;
use crate::layer::GoOn;

/// Deeper than any layer.
const DEPTH_MAX: usize = 256;
const VALUE_MAX: usize = 64 << 10;

impl Build<'_> {
    /// Makes sure that this store has the layers of a template of another project.
    pub fn adopt(&self, template: &HeldTemplate, go_on: GoOn<'_>) -> Result<(), Problem> {
        for layer in &template.layers {
            if self.store().layer(&layer.id)?.is_none() {
                self.bring(layer, go_on)?;
            }
        }
        Ok(())
    }

    fn bring(&self, layer: &StoredLayer, go_on: GoOn<'_>) -> Result<(), Problem> {
        let fail = |errno: Errno| storage("a layer of a published template can't be used", errno);
        let staged = random_name().map_err(fail)?;
        let place = self.stage(&staged)?;
        let tree = made(place.as_fd(), Path::new("tree")).map_err(fail)?;
        let from = openat(layer.tree(), ".", DIRECTORY, Mode::empty()).map_err(fail)?;
        link_tree(&from, &tree, 0, go_on)?;
        let document = serde_json::to_vec(&layer.record).expect("our own types have only text keys");
        super::commit::write_new(place.as_fd(), "layer.json", &document)
            .map_err(|error| storage("a layer of a published template can't be used", error))?;
        rustix::fs::syncfs(&place).map_err(fail)?;
        match renameat_with(
            self.staged(),
            staged.as_str(),
            self.store().layers(),
            layer.id.hex(),
            RenameFlags::NOREPLACE,
        ) {
            // Another snapshot has brought it meanwhile.
            Ok(()) | Err(Errno::EXIST | Errno::NOTEMPTY) => rustix::fs::fsync(self.store().layers()).map_err(fail),
            Err(errno) => Err(fail(errno)),
        }
    }
}

/// The same tree again: directories are made, everything else is linked.
fn link_tree(from: &OwnedFd, to: &OwnedFd, depth: usize, go_on: GoOn<'_>) -> Result<(), Problem> {
    let fail = |errno: Errno| storage("a layer of a published template can't be used", errno);
    if depth > DEPTH_MAX {
        return Err(fail(Errno::NAMETOOLONG));
    }
    for entry in Dir::read_from(from).map_err(fail)? {
        go_on()?;
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        if name.to_bytes() == b"." || name.to_bytes() == b".." {
            continue;
        }
        let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(fail)?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            rustix::fs::mkdirat(to, name, Mode::from_raw_mode(0o700)).map_err(fail)?;
            let (below, beside) = (open(from.as_fd(), name).map_err(fail)?, open(to.as_fd(), name).map_err(fail)?);
            link_tree(&below, &beside, depth + 1, go_on)?;
        } else {
            linkat(from, name, to, name, AtFlags::empty()).map_err(fail)?;
        }
    }
    resemble(from, to).map_err(fail)
}

fn open(at: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// The same owner, permissions, attributes and times, in this order: each may change those that come later.
fn resemble(model: &OwnedFd, new: &OwnedFd) -> Result<(), Errno> {
    let stat = fstat(model)?;
    fchown(new, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    fchmod(new, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    let mut list = vec![0; VALUE_MAX];
    let length = flistxattr(model, &mut list[..])?;
    for name in list[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        let mut value = vec![0; VALUE_MAX];
        let length = fgetxattr(model, name, &mut value[..])?;
        fsetxattr(new, name, &value[..length], XattrFlags::empty())?;
    }
    let time = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ };
    futimens(new, &Timestamps { last_access: time, last_modification: time })
}
