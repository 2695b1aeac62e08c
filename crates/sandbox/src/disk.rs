//! Storage on disk: the changes of one sandbox in a filesystem of their own, whose size is the limit.
//!
//! It is an ext4 in a file of the data directory, behind a loop device. The file has no name, the device is released with its last user,
//! and the mount belongs to nobody until the sandbox attaches it: when the sandbox and its supervisor are gone, however they ended, the
//! kernel frees all of it. So there is nothing to record and nothing to reap.
//!
//! INVARIANT: every block of the file is allocated before the sandbox starts. A file with holes would let programs write what the disk
//! below has no room for; the data would be lost after the write succeeded.
//!
//! The files in it belong to the store's ids, and a mount translates them, as it does for templates.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, fstatvfs, open};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
};
use saggar_domain::{Code, Problem};
use saggar_jail::{IdPair, Mapping, MountAttributes, range_mapping_namespace, set_mount_attributes};

use crate::data::DataDirectory;
use crate::ranges::STORE_IDS;

/// Where the program that makes the filesystem may be.
const MAKERS: &[&str] = &["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4"];
/// The smallest filesystem with a journal.
const BYTES_MIN: u64 = 16 << 20;
/// One part in so many of the disk stays free: records, and the database of a server, are on it too.
const RESERVE: u64 = 20;
/// How often another process may take the loop device that the kernel offered us.
const ATTEMPTS_MAX: u32 = 64;

/// The filesystem of one sandbox, mounted nowhere yet.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) mount: OwnedFd,
    pub(crate) mapping: Mapping,
}

impl Disk {
    /// Makes it, for a sandbox whose ids begin at `base`.
    pub(crate) fn make(data: &DataDirectory, bytes: u64, base: u32) -> Result<Self, Problem> {
        if bytes < BYTES_MIN {
            return Err(Problem::new(
                Code::InvalidValue,
                format!("storage on disk needs a limit of at least {BYTES_MIN} bytes"),
                "raise --disk to 16M or more, or keep the files in memory",
            ));
        }
        if !Path::new("/dev/loop-control").exists() {
            return Err(Problem::new(
                Code::UnsupportedCapability,
                "storage on disk needs loop devices, which this host doesn't have",
                "load the kernel module `loop`, or keep the files in memory",
            ));
        }
        let maker = maker()?;
        let file = allocated(data, bytes)?;
        format(maker, &file)?;
        let device = attach(&file).map_err(|errno| failed("getting a loop device", &errno))?;
        let mount = mounted(device).map_err(|errno| failed("mounting it", &errno))?;
        let mapping = range_mapping_namespace(IdPair { on_disk: STORE_IDS.start, seen: base })
            .map_err(|errno| failed("creating its id map", &errno))?;
        let attributes = MountAttributes { id_map: Some(mapping.namespace()), ..MountAttributes::default() };
        set_mount_attributes(&mount, attributes).map_err(|errno| failed("mapping its ids", &errno))?;
        Ok(Self { mount, mapping })
    }
}

/// Whether this host can keep the files of a sandbox on disk: makes the smallest filesystem, and drops it.
pub(crate) fn attempt(data: &DataDirectory) -> Result<(), Problem> {
    if !rustix::process::geteuid().is_root() {
        return Err(not_root());
    }
    Disk::make(data, BYTES_MIN, STORE_IDS.start).map(drop)
}

pub(crate) fn not_root() -> Problem {
    Problem::new(
        Code::UnsupportedCapability,
        "storage on disk needs root: an ordinary user can't limit the size of a directory",
        "keep the files in memory, which is the default, or run as root",
    )
}

fn maker() -> Result<&'static str, Problem> {
    MAKERS.iter().copied().find(|path| Path::new(path).exists()).ok_or_else(|| {
        Problem::new(
            Code::UnsupportedCapability,
            "storage on disk needs mkfs.ext4, which this host doesn't have",
            "install e2fsprogs, or keep the files in memory",
        )
    })
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Problem {
    Problem::new(
        Code::SetupFailed,
        format!("the sandbox's storage on disk can't be made: {what}: {error}"),
        "`saggar doctor` shows whether this host supports it; or keep the files in memory",
    )
}

/// A file without a name, with all its blocks.
fn allocated(data: &DataDirectory, bytes: u64) -> Result<OwnedFd, Problem> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file =
        open(data.path(), flags, Mode::from_raw_mode(0o600)).map_err(|errno| failed("creating its file", &errno))?;
    let room = fstatvfs(&file).map_err(|errno| failed("asking for the space that is left", &errno))?;
    let left = room.f_bavail.saturating_mul(room.f_frsize);
    let reserve = room.f_blocks.saturating_mul(room.f_frsize) / RESERVE;
    // Before anything is taken: allocating what isn't there takes all that is.
    if left.saturating_sub(reserve) < bytes {
        return Err(no_room());
    }
    match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(file),
        Err(Errno::NOSPC | Errno::DQUOT) => Err(no_room()),
        Err(errno) => Err(failed("allocating its blocks", &errno)),
    }
}

fn no_room() -> Problem {
    Problem::new(
        Code::SetupFailed,
        "the disk of the data directory has no room for the sandbox's storage",
        "free some space, lower --disk, or keep the files in memory; a twentieth of the disk always stays free",
    )
}

/// Makes the filesystem. Nothing is discarded, which would free the blocks; and what is zero already isn't written.
fn format(maker: &str, file: &OwnedFd) -> Result<(), Problem> {
    let root = STORE_IDS.start;
    let extended = format!("nodiscard,lazy_itable_init=1,lazy_journal_init=1,root_owner={root}:{root}");
    // The child inherits no descriptor, and opens the file through ours.
    let place = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let mut command = Command::new(maker);
    command.arg0("mkfs.ext4").env_clear().current_dir("/");
    command.args(["-q", "-F", "-b", "4096", "-m", "0", "-J", "size=4", "-O", "^resize_inode", "-E", &extended, &place]);
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed("mkfs.ext4", &status)),
        Err(error) => Err(failed("mkfs.ext4", &error.kind())),
    }
}

/// The number of a loop device that shows the file until its last user is gone, held open.
fn attach(file: &OwnedFd) -> Result<(u32, OwnedFd), Errno> {
    let control = open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    for _ in 0..ATTEMPTS_MAX {
        // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns a number.
        let number = checked(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) })?;
        let device = open(format!("/dev/loop{number}"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        let mut config = LoopConfig::new(file.as_raw_fd() as u32);
        // SAFETY: LOOP_CONFIGURE reads one loop_config, which is live and of the kernel's layout.
        match checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw mut config) }) {
            Ok(_) => return Ok((number as u32, device)),
            // Another process was faster.
            Err(Errno::BUSY) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(Errno::BUSY)
}

/// The device stays open until it is mounted: it is released with its last user.
fn mounted((number, device): (u32, OwnedFd)) -> Result<OwnedFd, Errno> {
    let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(context.as_fd(), "source", format!("/dev/loop{number}"))?;
    // What is not written is zero, and needs no process of the kernel that writes it.
    fsconfig_set_flag(context.as_fd(), "noinit_itable")?;
    // An error makes this filesystem read-only, and nothing else: the default may be to stop the machine.
    fsconfig_set_string(context.as_fd(), "errors", "remount-ro")?;
    fsconfig_create(context.as_fd())?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
    drop(device);
    Ok(mount)
}

const LOOP_CTL_GET_FREE: u32 = 0x4C82;
const LOOP_CONFIGURE: u32 = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_config` with its `struct loop_info64`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    numbers: [u64; 5],
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
    reserved: [u64; 8],
}

impl LoopConfig {
    /// Without a cache of its own: the filesystem on it has one.
    fn new(fd: u32) -> Self {
        Self {
            fd,
            block_size: 0,
            numbers: [0; 5],
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
            reserved: [0; 8],
        }
    }
}

const _: () = assert!(size_of::<LoopConfig>() == 304);

fn checked(outcome: libc::c_int) -> Result<libc::c_int, Errno> {
    if outcome < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(outcome)
}
