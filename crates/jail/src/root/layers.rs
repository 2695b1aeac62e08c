//! A root made of layers: one copy-on-write view, whose changes are in private storage.
//!
//! The layers come from an image, so every name in them is chosen by a stranger: `/etc` may be a link to `/proc`, `/dev` a file. What is
//! opened, made or mounted here is found component by component below the view, and no link is followed, except where programs would look
//! for a file through one; those are followed inside of the view alone.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, mkdirat, openat, openat2, symlinkat, unlinkat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen, move_mount,
};

use super::{Root, STAGE, check_marks, write_new};
use crate::plan::{Fate, Source};
use crate::sys::clone_tree;

/// Directories of private storage: the mount points of the layers, the changes with what the kernel needs beside them, and the directories
/// of [`crate::Op::Private`].
const LOWERS: &str = "lowers";
/// The mount point of a filesystem for the changes.
const DISK: &str = "disk";
const PRIVATES: &str = "privates";
/// The mode of directories that are missing on the way to one that is wanted.
const PARENT_MODE: u32 = 0o755;

impl Root {
    /// Attaches a view of the layers over private storage.
    ///
    /// The kernel takes only attached mounts as layers. So each is attached in private storage first, under a name of ours: names of
    /// the host appear neither in the mount options nor in a path that has to be quoted.
    pub(super) fn layers(&self, lowers: &[Source], disk: Option<&Source>, fate: Fate) -> Result<(), Errno> {
        for path in [LOWERS, DISK, PRIVATES] {
            mkdirat(&self.storage, path, Mode::from_raw_mode(0o755))?;
        }
        if let Some(disk) = disk {
            self.attach_writable_in_storage(disk, DISK)?;
        }
        let [upper, work] = ["upper", "work"].map(|name| format!("{DISK}/{name}"));
        for path in [&upper, &work] {
            mkdirat(&self.storage, path.as_str(), Mode::from_raw_mode(0o755))?;
        }
        let mut names = Vec::with_capacity(lowers.len());
        for (index, source) in lowers.iter().enumerate() {
            let name = format!("{LOWERS}/{index}");
            mkdirat(&self.storage, name.as_str(), Mode::from_raw_mode(0o755))?;
            self.attach_in_storage(source, &name)?;
            names.push(name);
        }
        self.resemble(&upper, names.first().ok_or(Errno::INVAL)?)?;
        let changes = self.open_in_storage(&upper)?;
        check_marks(&changes)?;
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        match names.iter().try_for_each(|name| fsconfig_set_string(context.as_fd(), "lowerdir+", name.as_str())) {
            // Kernels before 6.7 take them all at once, in at most 255 bytes.
            Err(Errno::INVAL) => fsconfig_set_string(context.as_fd(), "lowerdir", names.join(":"))?,
            other => other?,
        }
        fsconfig_set_string(context.as_fd(), "upperdir", upper.as_str())?;
        fsconfig_set_string(context.as_fd(), "workdir", work.as_str())?;
        // Marks in attributes that the mounter may write in its own namespace. A program can't forge them: below such a view the kernel
        // keeps these names to itself.
        fsconfig_set_flag(context.as_fd(), "userxattr")?;
        // The changes are gone with the sandbox, so nothing needs to be written through before that.
        fsconfig_set_flag(context.as_fd(), "volatile")?;
        fsconfig_set_string(context.as_fd(), "source", "template")?;
        fsconfig_create(context.as_fd())?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let view = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
        move_mount(view.as_fd(), "", rustix::fs::CWD, STAGE, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        if fate == Fate::HandedOver {
            *self.changes.borrow_mut() = Some(changes);
        }
        self.view.set(view).map_err(|_| Errno::ALREADY)
    }

    /// Mounts a directory of private storage over one of the view.
    pub(super) fn private(&self, path: &str, mode: u32) -> Result<(), Errno> {
        let number = self.privates.get();
        self.privates.set(number + 1);
        let own = format!("{PRIVATES}/{number}");
        self.directory(&own, mode, 0)?;
        let tree = clone_tree(&self.storage, &own)?;
        self.attach(tree.as_fd(), path)
    }

    /// Opens a path of the root that exists, whatever it is.
    pub(super) fn find(&self, path: &str) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        openat2(self.fd(), path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    /// Opens a directory of the root. One that is missing is made, and so are those above it.
    pub(super) fn find_or_make(&self, path: &str, mode: u32, owner: u32) -> Result<OwnedFd, Errno> {
        let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
        // The host's files are still around the root.
        if names.iter().any(|name| [".", ".."].contains(name)) {
            return Err(Errno::INVAL);
        }
        let mut directory = self.fd().try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        for (index, name) in names.iter().enumerate() {
            let (mode, owner) = if index + 1 == names.len() { (mode, owner) } else { (PARENT_MODE, 0) };
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            directory = match openat(&directory, *name, flags, Mode::empty()) {
                Err(Errno::NOENT) => {
                    self.directory_in(directory.as_fd(), name, mode, owner)?;
                    openat(&directory, *name, flags, Mode::empty())?
                }
                other => other?,
            };
        }
        Ok(directory)
    }

    /// Opens a directory as a program inside would: links are followed, but only inside of the view, so that none leads into /proc or
    /// another mount. One that is missing is made, and so are those above it.
    pub(super) fn reach_or_make(&self, path: &str, mode: u32, owner: u32) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &str| openat2(self.fd(), path, flags, Mode::empty(), resolve);
        if path.split('/').any(|name| [".", ".."].contains(&name)) {
            return Err(Errno::INVAL);
        }
        let mut directory = open(".")?;
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]).filter(|end| *end > 0);
        for end in ends {
            let part = &path[..end];
            directory = match open(part) {
                Err(Errno::NOENT) => {
                    let name = part.rsplit('/').next().unwrap_or(part);
                    let (mode, owner) = if end == path.len() { (mode, owner) } else { (PARENT_MODE, 0) };
                    self.directory_in(directory.as_fd(), name, mode, owner)?;
                    open(part)?
                }
                other => other?,
            };
        }
        Ok(directory)
    }

    /// Makes a directory that programs start in, if nothing is there.
    pub(super) fn working_directory(&self, path: &str, owner: u32) -> Result<(), Errno> {
        match self.reach_or_make(path, PARENT_MODE, owner) {
            // It is in another mount, or something else is in its place: the start of a program says what is wrong, if anything is.
            Err(Errno::XDEV | Errno::NOTDIR | Errno::LOOP | Errno::EXIST) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Writes a file of the root in the place of a file or link that may be there.
    pub(super) fn replace(&self, path: &str, bytes: &[u8]) -> Result<(), Errno> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let directory = self.find_or_make(parent, PARENT_MODE, 0)?;
        self.replace_in(&directory, name, bytes)
    }

    pub(super) fn replace_in(&self, directory: &OwnedFd, name: &str, bytes: &[u8]) -> Result<(), Errno> {
        match unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        write_new(directory.as_fd(), name, bytes)
    }

    /// The same for a link.
    pub(super) fn replace_with_link(&self, path: &str, target: &str) -> Result<(), Errno> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let directory = self.find_or_make(parent, PARENT_MODE, 0)?;
        match unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        symlinkat(target, &directory, name)
    }

    pub(super) fn open_in_storage(&self, path: &str) -> Result<OwnedFd, Errno> {
        openat(&self.storage, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Makes a directory of private storage and those above it.
    pub(super) fn make_in_storage(&self, path: &str) -> Result<(), Errno> {
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends {
            match mkdirat(&self.storage, &path[..end], Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}
