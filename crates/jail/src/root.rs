//! Builds the private root: runs the plan's operations, inside the new mount namespace.
//!
//! The root is one tmpfs, so that everything the sandbox owns counts against one limit. It is attached over /proc, a
//! directory that every host has, then filled and pivoted to. Afterwards the host's tree is detached and out of reach.
//!
//! If the root is made of layers (`layers`), a copy-on-write view is attached on top of the tmpfs, which then holds the changes and is
//! detached along with the host's tree.

mod layers;

use std::cell::{Cell, OnceCell, RefCell};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, ResolveFlags, Uid, XattrFlags, chownat, fremovexattr, fsetxattr, fstat, mkdirat, open,
    openat, openat2, statat, symlinkat,
};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, mount_bind, move_mount, unmount,
};

use crate::identity::Identity;
use crate::plan::{Attributes, Cover, Fate, Op, Plan, Source};
use crate::rule::Rule;
use crate::sys::{MountAttributes, clone_tree, make_read_only, pivot_here, set_mount_attributes};

/// The temporary mount point of the new root.
const STAGE: &str = "/proc";
/// Size of private storage when its limit is switched off: more than any case needs, and no danger to the host.
const OFF_BYTES: u64 = 1 << 30;
const OFF_INODES: u64 = 1 << 20;
/// Maximum number of terminals. The host has one pool of a few thousand, and no cgroup is charged for their buffers.
const TERMINALS_MAX: u32 = 64;

/// A root being built.
pub(crate) struct Root {
    /// The tmpfs. Also the working directory while the root is built: where a view lies over it, it has no path.
    storage: OwnedFd,
    /// The view of layers, if the root is one.
    view: OnceCell<OwnedFd>,
    /// Number of directories that [`Op::Private`] has made.
    privates: Cell<u32>,
    identity: Identity,
    /// The layer that holds the changes of a copy-on-write view.
    layer: RefCell<Option<OwnedFd>>,
    /// What holds the changes of the root itself.
    changes: RefCell<Option<OwnedFd>>,
    /// Files that the parent may write.
    kept: RefCell<Vec<OwnedFd>>,
}

impl Root {
    /// Creates the tmpfs and attaches it.
    pub(crate) fn stage(plan: &Plan) -> Result<Self, Errno> {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let bytes = if Rule::Disk.is_on() { plan.storage_bytes } else { OFF_BYTES };
        let inodes = if Rule::Inodes.is_on() { plan.storage_inodes } else { OFF_INODES };
        fsconfig_set_string(context.as_fd(), "size", bytes.to_string())?;
        fsconfig_set_string(context.as_fd(), "nr_inodes", inodes.to_string())?;
        fsconfig_set_string(context.as_fd(), "mode", "0755")?;
        fsconfig_create(context.as_fd())?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let fd = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
        move_mount(fd.as_fd(), "", rustix::fs::CWD, STAGE, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
        let root = Self {
            storage: fd,
            view: OnceCell::new(),
            privates: Cell::new(0),
            identity: plan.identity,
            layer: RefCell::new(None),
            changes: RefCell::new(None),
            kept: RefCell::default(),
        };
        rustix::process::fchdir(&root.storage)?;
        chownat(
            &root.storage,
            "",
            Some(Uid::from_raw(root.owner(0))),
            Some(Gid::from_raw(root.owner(0))),
            AtFlags::EMPTY_PATH,
        )?;
        Ok(root)
    }

    /// Runs one operation.
    pub(crate) fn run(&self, op: &Op) -> Result<(), Errno> {
        match op {
            Op::Layers { lowers, disk, fate } => self.layers(lowers, disk.as_ref(), *fate),
            Op::Expose => self.expose(),
            Op::Private { path, mode } => self.private(path, *mode),
            Op::Directory { path, mode, owner } if self.is_layered() => {
                self.find_or_make(path, *mode, *owner).map(|_| ())
            }
            Op::Directory { path, mode, owner } => self.directory(path, *mode, *owner),
            Op::File { path, bytes } => self.file(path, bytes),
            Op::WorkingDirectory { path, owner } => self.working_directory(path, *owner),
            Op::Kept { directory, name, bytes } => self.keep(directory, name, bytes),
            Op::Link { path, target } if self.is_layered() => self.replace_with_link(path, target),
            Op::Link { path, target } => symlinkat(target.as_str(), self.fd(), path.as_str()),
            Op::Bind { source, target, attributes } => self.bind(source, target, *attributes),
            // A node can't be mounted on or executed, and set-id bits have no effect on it, so a plain bind is enough.
            Op::Device { name } => {
                self.file(&format!("dev/{name}"), b"")?;
                mount_bind(format!("/dev/{name}"), format!("{STAGE}/dev/{name}"))
            }
            Op::Writable { path } => {
                let tree = clone_tree(&self.fd(), path)?;
                self.attach(tree.as_fd(), path)
            }
            Op::Overlay { lower, target, layer, fate } => self.overlay(lower, target, layer, *fate),
            Op::Protect { .. } if !Rule::HeldPaths.is_on() => Ok(()),
            Op::Protect { under, names } => self.protect(under, names),
            Op::Proc { target } => self.proc(target),
            Op::Terminals { target } => self.terminals(target),
            Op::Covers => self.make_covers(),
            Op::Mask { path, cover } => self.mask(path, *cover),
            Op::Seal { .. } if !Rule::SealedRoot.is_on() => Ok(()),
            Op::Seal { path } if path.is_empty() => make_read_only(self.fd()),
            Op::Seal { path } => {
                let mount = openat(self.fd(), path.as_str(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
                make_read_only(mount.as_fd())
            }
        }
    }

    /// Pivots to the new root and detaches the host's.
    pub(crate) fn enter(&self) -> Result<(), Errno> {
        rustix::process::fchdir(self.fd())?;
        pivot_here()?;
        unmount(".", UnmountFlags::DETACH)?;
        rustix::process::chdir("/")
    }

    pub(crate) fn into_handed_over(self) -> HandedOver {
        HandedOver { layer: self.layer.into_inner(), changes: self.changes.into_inner(), kept: self.kept.into_inner() }
    }

    /// A mount of its own: in the root's, what is mounted over a directory would hide it.
    fn expose(&self) -> Result<(), Errno> {
        let tree = clone_tree(&self.storage, "")?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        *self.changes.borrow_mut() = Some(openat(&tree, ".", flags, Mode::empty())?);
        Ok(())
    }

    /// The root as programs will see it.
    fn fd(&self) -> BorrowedFd<'_> {
        self.view.get().unwrap_or(&self.storage).as_fd()
    }

    fn is_layered(&self) -> bool {
        self.view.get().is_some()
    }

    fn owner(&self, id: u32) -> u32 {
        self.identity.owner(id)
    }

    fn directory(&self, path: &str, mode: u32, owner: u32) -> Result<(), Errno> {
        self.directory_in(self.storage.as_fd(), path, mode, owner)
    }

    fn directory_in(&self, parent: BorrowedFd<'_>, path: &str, mode: u32, owner: u32) -> Result<(), Errno> {
        mkdirat(parent, path, Mode::from_raw_mode(mode))?;
        if owner != 0 {
            let id = self.owner(owner);
            chownat(parent, path, Some(Uid::from_raw(id)), Some(Gid::from_raw(id)), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    fn file(&self, path: &str, bytes: &[u8]) -> Result<(), Errno> {
        if self.is_layered() {
            return self.replace(path, bytes);
        }
        write_new(self.storage.as_fd(), path, bytes)
    }

    /// The file is opened through a mount of its own: one that is open for writing would keep the root from being sealed.
    fn keep(&self, directory: &str, name: &str, bytes: &[u8]) -> Result<(), Errno> {
        let place = if self.is_layered() {
            let place = self.reach_or_make(directory, 0o755, 0)?;
            self.replace_in(&place, name, bytes)?;
            place
        } else {
            self.file(&format!("{directory}/{name}"), bytes)?;
            self.find(directory)?
        };
        let tree = clone_tree(&place, "")?;
        let file = openat(&tree, name, OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
        self.kept.borrow_mut().push(file);
        Ok(())
    }

    fn bind(&self, source: &Source, target: &str, attributes: Attributes) -> Result<(), Errno> {
        match mounted(source, attributes)? {
            Mounted::Ours(tree) => self.attach(tree.as_fd(), target),
            Mounted::Given(tree) => self.attach(tree, target),
        }
    }

    fn overlay(&self, lower: &Source, target: &str, layer: &str, fate: Fate) -> Result<(), Errno> {
        let [below, upper, work] = ["lower", "upper", "work"].map(|name| format!("{layer}/{name}"));
        if self.is_layered() {
            self.make_in_storage(layer)?;
        }
        for path in [&below, &upper, &work] {
            mkdirat(&self.storage, path.as_str(), Mode::from_raw_mode(0o755))?;
        }
        self.attach_in_storage(lower, &below)?;
        self.resemble(&upper, &below)?;
        let marked = self.open_in_storage(&upper)?;
        if fate == Fate::HandedOver {
            check_marks(&marked)?;
        }
        let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (key, path) in [("lowerdir", &below), ("upperdir", &upper), ("workdir", &work)] {
            fsconfig_set_string(context.as_fd(), key, path.as_str())?;
        }
        fsconfig_set_flag(context.as_fd(), "userxattr")?;
        fsconfig_set_string(context.as_fd(), "source", "scratch")?;
        match fsconfig_create(context.as_fd()) {
            // Kernels before 5.19 can't create an overlay of an idmapped mount. If the changes would be dropped anyway,
            // the lower layer is bound there instead.
            Err(Errno::INVAL) if fate == Fate::Dropped => {
                return mount_bind(below.as_str(), format!("{STAGE}/{target}"));
            }
            other => other?,
        }
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
        let tree = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
        self.attach(tree.as_fd(), target)?;
        match fate {
            Fate::HandedOver => {
                *self.layer.borrow_mut() = Some(marked);
                // The parts of the view must not be visible beside it, nor its path on the host.
                unmount(below.as_str(), UnmountFlags::DETACH)
            }
            // The cover over all layers is enough here, and avoids the delay of an unmount.
            Fate::Dropped => Ok(()),
        }
    }

    /// Binds each directory on the way onto itself, which stops the kernel from renaming or removing it, and the last
    /// name read-only.
    fn protect(&self, under: &str, names: &[String]) -> Result<(), Errno> {
        let mut path = under.to_owned();
        let Some((last, parents)) = names.split_last() else { return Err(Errno::INVAL) };
        for name in parents {
            path = format!("{path}/{name}");
            if Rule::HeldAncestors.is_on() {
                self.hold(under, &path, Attributes::ReadWrite)?;
            }
        }
        self.hold(under, &format!("{path}/{last}"), Attributes::ReadOnly)
    }

    fn hold(&self, under: &str, path: &str, attributes: Attributes) -> Result<(), Errno> {
        let base = openat(self.fd(), under, OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
        let inside = path.strip_prefix(under).map_or(path, |rest| rest.trim_start_matches('/'));
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let place = openat2(&base, inside, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
        if attributes == Attributes::ReadWrite && is_mount_point(&place)? {
            return Ok(());
        }
        let tree = clone_tree(&place, "")?;
        set_mount_attributes(
            &tree,
            MountAttributes { is_read_only: attributes == Attributes::ReadOnly, ..MountAttributes::default() },
        )?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        move_mount(tree.as_fd(), "", place.as_fd(), "", flags)
    }

    fn proc(&self, target: &str) -> Result<(), Errno> {
        let context = fsopen("proc", FsOpenFlags::FSOPEN_CLOEXEC)?;
        // Processes of other users, including the agent, are not even listed. The agent itself has to find them to end
        // them.
        if Rule::HidePid.is_on() {
            fsconfig_set_string(context.as_fd(), "hidepid", "invisible")?;
            if let Some(group) = self.identity.agents_group() {
                fsconfig_set_string(context.as_fd(), "gid", group.to_string())?;
            }
        }
        fsconfig_create(context.as_fd())?;
        let mut flags = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC
            | MountAttrFlags::MOUNT_ATTR_RDONLY;
        if !Rule::ReadOnlyProc.is_on() {
            flags.remove(MountAttrFlags::MOUNT_ATTR_RDONLY);
        }
        let tree = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
        self.attach(tree.as_fd(), target)
    }

    fn terminals(&self, target: &str) -> Result<(), Errno> {
        let context = fsopen("devpts", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(context.as_fd(), "mode", "0620")?;
        fsconfig_set_string(context.as_fd(), "ptmxmode", "0666")?;
        if Rule::Terminals.is_on() {
            fsconfig_set_string(context.as_fd(), "max", TERMINALS_MAX.to_string())?;
        }
        fsconfig_create(context.as_fd())?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let tree = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
        self.attach(tree.as_fd(), target)
    }

    /// Covers an existing path. One cover of each kind is created with its attributes; binding it elsewhere copies
    /// them.
    fn mask(&self, path: &str, cover: Cover) -> Result<(), Errno> {
        let source = match cover {
            Cover::File => COVER_FILE,
            Cover::Directory => COVER_DIRECTORY,
        };
        match mount_bind(source, format!("{STAGE}/{path}")) {
            // Not every kernel has every file, and a missing file needs no cover.
            Err(Errno::NOENT) => Ok(()),
            other => other,
        }
    }

    /// The covers: an empty directory and an empty file, both read-only.
    fn make_covers(&self) -> Result<(), Errno> {
        let empty = MountAttributes { is_read_only: true, is_no_exec: true, ..MountAttributes::default() };
        self.directory(COVER_DIRECTORY, 0o555, 0)?;
        write_new(self.storage.as_fd(), COVER_FILE, b"")?;
        for path in [COVER_DIRECTORY, COVER_FILE] {
            let tree = clone_tree(&self.storage, path)?;
            set_mount_attributes(&tree, empty)?;
            attach_at(tree.as_fd(), self.storage.as_fd(), path)?;
        }
        Ok(())
    }

    fn attach(&self, tree: BorrowedFd<'_>, target: &str) -> Result<(), Errno> {
        if self.is_layered() {
            let place = self.find(target)?;
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
            return move_mount(tree, "", place.as_fd(), "", flags);
        }
        attach_at(tree, self.storage.as_fd(), target)
    }

    /// Gives a new directory of private storage the owner and permissions of another one.
    fn resemble(&self, new: &str, model: &str) -> Result<(), Errno> {
        let top = statat(&self.storage, model, AtFlags::SYMLINK_NOFOLLOW)?;
        rustix::fs::chmodat(&self.storage, new, Mode::from_raw_mode(top.st_mode & 0o777), AtFlags::empty())?;
        for (uid, gid) in [(Some(Uid::from_raw(top.st_uid)), None), (None, Some(Gid::from_raw(top.st_gid)))] {
            match chownat(&self.storage, new, uid, gid, AtFlags::SYMLINK_NOFOLLOW) {
                // An owner or group without an id in here can't be set; it shows as the overflow id in either case.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn attach_in_storage(&self, source: &Source, target: &str) -> Result<(), Errno> {
        self.attach_there(mounted(source, Attributes::ReadOnly)?, target)
    }

    fn attach_writable_in_storage(&self, source: &Source, target: &str) -> Result<(), Errno> {
        self.attach_there(mounted(source, Attributes::ReadWrite)?, target)
    }

    fn attach_there(&self, mounted: Mounted<'_>, target: &str) -> Result<(), Errno> {
        match mounted {
            Mounted::Ours(tree) => attach_at(tree.as_fd(), self.storage.as_fd(), target),
            Mounted::Given(tree) => attach_at(tree, self.storage.as_fd(), target),
        }
    }
}

/// What the parent gets of a root.
pub(crate) struct HandedOver {
    /// The layer of the copy-on-write view, if there is one.
    pub(crate) layer: Option<OwnedFd>,
    /// What holds the changes of the root itself.
    pub(crate) changes: Option<OwnedFd>,
    /// Files that it may write.
    pub(crate) kept: Vec<OwnedFd>,
}

/// A detached mount.
enum Mounted<'a> {
    Ours(OwnedFd),
    /// By the plan, with its attributes.
    Given(BorrowedFd<'a>),
}

fn mounted(source: &Source, attributes: Attributes) -> Result<Mounted<'_>, Errno> {
    let tree = match source {
        // SAFETY: the plan's owner keeps the descriptor open until `spawn` returns, and we are its child.
        Source::Detached(fd) => return Ok(Mounted::Given(unsafe { BorrowedFd::borrow_raw(*fd) })),
        Source::System(path) => clone_tree(&rustix::fs::CWD, path)?,
        Source::Pinned { path, device, inode } => clone_tree(&pinned(path, *device, *inode)?, "")?,
    };
    let is_kept = Rule::ReadOnlyMounts.is_on() || matches!(source, Source::System(_));
    let wanted = match attributes {
        Attributes::ReadOnly if is_kept => MountAttributes { is_read_only: true, ..MountAttributes::default() },
        Attributes::ReadOnly | Attributes::ReadWrite => MountAttributes::default(),
    };
    set_mount_attributes(&tree, wanted)?;
    Ok(Mounted::Ours(tree))
}

/// Without opaque marks a view could not tell a directory that was removed and created again from an unchanged one, and removing one fails
/// half-way. Kernels before 6.6 keep no such marks on a tmpfs.
fn check_marks(upper: &OwnedFd) -> Result<(), Errno> {
    fsetxattr(upper, "user.saggar", b"", XattrFlags::empty())?;
    fremovexattr(upper, "user.saggar")
}

fn attach_at(tree: BorrowedFd<'_>, directory: BorrowedFd<'_>, path: &str) -> Result<(), Errno> {
    move_mount(tree, "", directory, path, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn write_new(directory: BorrowedFd<'_>, path: &str, bytes: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(directory, path, flags, Mode::from_raw_mode(0o644))?;
    let mut rest = bytes;
    while !rest.is_empty() {
        rest = &rest[rustix::io::write(&file, rest)?..];
    }
    Ok(())
}

/// The covers are in private storage, because only attached mounts can be bound elsewhere.
const COVER_DIRECTORY: &str = ".empty";
const COVER_FILE: &str = ".null";

/// Opens a path without following any link, and checks that it is the file the caller saw.
fn pinned(path: &str, device: u64, inode: u64) -> Result<OwnedFd, Errno> {
    let root = open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let opened = openat2(&root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    let seen = fstat(&opened)?;
    if (seen.st_dev, seen.st_ino) != (device, inode) {
        return Err(Errno::STALE);
    }
    Ok(opened)
}

fn is_mount_point(place: &OwnedFd) -> Result<bool, Errno> {
    let statx = rustix::fs::statx(place, "", AtFlags::EMPTY_PATH, rustix::fs::StatxFlags::BASIC_STATS)?;
    Ok(statx.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT))
}
