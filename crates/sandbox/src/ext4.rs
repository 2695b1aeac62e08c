//! An ext4 filesystem in one file of the data directory, whose size is the limit of everything in it.
//!
//! INVARIANT: every block of the file is allocated before it is mounted. A file with holes would let programs write what the disk below has
//! no room for; the data would be lost after the write succeeded.
//!
//! The files in it belong to the store's ids, and a mount translates them, as it does for templates.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FallocateFlags, FlockOperation, Mode, OFlags, fallocate, flock, fstat, fstatvfs, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use saggar_domain::{Code, Problem};
use saggar_jail::{IdPair, Mapping, MountAttributes, range_mapping_namespace, set_mount_attributes};

use crate::fail_point::pass;
use crate::loop_device::LoopDevice;
use crate::ranges::{DIRECTORY, STORE_IDS};

/// Where the program that makes the filesystem may be.
const MAKERS: &[&str] = &["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4"];
/// The smallest filesystem with a journal.
pub(crate) const BYTES_MIN: u64 = 16 << 20;
/// One part in so many of the disk stays free: records, and the database of a server, are on it too.
const RESERVE: u64 = 20;

/// How long the files are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// Beyond a crash of the machine.
    Lasting,
    /// As long as it is mounted.
    OfItsUser,
}

/// Why there is no such filesystem.
#[derive(Debug)]
pub(crate) enum Trouble {
    NoLoopDevices,
    NoMaker,
    NoRoom,
    Failed { step: &'static str, why: String },
}

impl Trouble {
    pub(crate) fn at(step: &'static str) -> impl Fn(Errno) -> Self {
        move |errno| Self::Failed { step, why: errno.to_string() }
    }

    /// `what` is a thing in the singular, such as "storage on disk"; `instead` is what else to do.
    pub(crate) fn into_problem(self, what: &str, instead: &str) -> Problem {
        match self {
            Self::NoLoopDevices => Problem::new(
                Code::UnsupportedCapability,
                format!("{what} needs loop devices, which this host doesn't have"),
                format!("load the kernel module `loop`, or {instead}"),
            ),
            Self::NoMaker => Problem::new(
                Code::UnsupportedCapability,
                format!("{what} needs mkfs.ext4, which this host doesn't have"),
                format!("install e2fsprogs, or {instead}"),
            ),
            Self::NoRoom => Problem::new(
                Code::SetupFailed,
                format!("the disk of the data directory has no room for {what}"),
                format!("free some space, ask for less, or {instead}; a twentieth of the disk always stays free"),
            ),
            Self::Failed { step, why } => Problem::new(
                Code::SetupFailed,
                format!("{what} can't be used: {step}: {why}"),
                format!("`saggar doctor` shows whether this host supports it; or {instead}"),
            ),
        }
    }
}

/// One process of the host at a time looks for room and takes it, whatever project or data directory it works for: otherwise two that
/// see the same room would take the reserve too.
fn reserve_lock() -> Result<OwnedFd, Errno> {
    match std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(DIRECTORY) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(CWD, format!("{DIRECTORY}/room"), flags, Mode::from_raw_mode(0o600))?;
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            other => return other.map(|()| file),
        }
    }
}

/// Gives an open file all its blocks. Those that it has need no room.
pub(crate) fn allocate(file: &OwnedFd, bytes: u64) -> Result<(), Trouble> {
    let _alone = reserve_lock().map_err(Trouble::at("waiting for others that take space"))?;
    let stat = fstat(file).map_err(Trouble::at("examining its file"))?;
    let missing = bytes.saturating_sub((stat.st_blocks as u64).saturating_mul(512));
    let room = fstatvfs(file).map_err(Trouble::at("asking for the space that is left"))?;
    let left = room.f_bavail.saturating_mul(room.f_frsize);
    let reserve = room.f_blocks.saturating_mul(room.f_frsize) / RESERVE;
    // Before anything is taken: allocating what isn't there takes all that is.
    if left.saturating_sub(reserve) < missing {
        return Err(Trouble::NoRoom);
    }
    pass("disk/room");
    // Even if nothing seems to be missing: the blocks that describe the file are counted too, and hide as many holes.
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC | Errno::DQUOT) => Err(Trouble::NoRoom),
        Err(errno) => Err(Trouble::at("allocating its blocks")(errno)),
    }
}

/// Makes the filesystem. Nothing is discarded, which would free the blocks; and what is zero already isn't written.
pub(crate) fn format(file: &OwnedFd, options: &[&str]) -> Result<(), Trouble> {
    let maker = MAKERS.iter().copied().find(|path| Path::new(path).exists()).ok_or(Trouble::NoMaker)?;
    let root = STORE_IDS.start;
    let extended = format!("nodiscard,lazy_itable_init=1,lazy_journal_init=1,root_owner={root}:{root}");
    // The child inherits no descriptor, and opens the file through ours.
    let place = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut command = Command::new(maker);
    command.arg0("mkfs.ext4").env_clear().current_dir("/");
    command.args(["-q", "-F", "-b", "4096", "-m", "0"]).args(options);
    command.args(["-O", "^resize_inode", "-E", &extended, &place]);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let why = match status {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.kind().to_string(),
    };
    Err(Trouble::Failed { step: "mkfs.ext4", why })
}

/// Mounts it nowhere. The device stays open until then: it is released with its last user. A device that is mounted already gets a second
/// mount of the same filesystem.
pub(crate) fn mount(device: &LoopDevice, lifetime: Lifetime) -> Result<OwnedFd, Errno> {
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", device.path())?;
    // What is not written is zero, and needs no process of the kernel that writes it.
    fsconfig_set_flag(context.as_fd(), "noinit_itable")?;
    if lifetime == Lifetime::OfItsUser {
        // Nothing has to reach the disk in an order. Without this, the end of a sandbox waits until the disk below has written through what
        // everybody else wrote.
        fsconfig_set_flag(context.as_fd(), "nobarrier")?;
    }
    // An error makes this filesystem read-only, and nothing else: the default may be to stop the machine.
    fsconfig_set_string(context.as_fd(), "errors", "remount-ro")?;
    fsconfig_create(context.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// Shows the store's ids in a mount as those of a sandbox, which begin at `base`.
pub(crate) fn map_ids(mount: &OwnedFd, base: u32, is_read_only: bool) -> Result<Mapping, Trouble> {
    let mapping = range_mapping_namespace(IdPair { on_disk: STORE_IDS.start, seen: base })
        .map_err(Trouble::at("creating its id map"))?;
    let attributes = MountAttributes { is_read_only, id_map: Some(mapping.namespace()), ..MountAttributes::default() };
    set_mount_attributes(mount, attributes).map_err(Trouble::at("mapping its ids"))?;
    Ok(mapping)
}
