//! Loop devices: a file of the data directory as a block device.
//!
//! A device is released with its last user, so there is nothing to reap. Two devices that show one file have two caches, and a
//! filesystem that is mounted through both is destroyed: what may be attached already is looked for first, under a lock of the caller's.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;

/// How often another process may take the loop device that the kernel offered us.
const ATTEMPTS_MAX: u32 = 64;

/// A device that shows a file, held open.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    number: u32,
    _open: OwnedFd,
}

impl LoopDevice {
    pub(crate) fn is_supported() -> bool {
        std::path::Path::new("/dev/loop-control").exists()
    }

    pub(crate) fn path(&self) -> String {
        format!("/dev/loop{}", self.number)
    }

    /// Shows the file until the device's last user is gone.
    pub(crate) fn attach(file: &OwnedFd) -> Result<Self, Errno> {
        let control = open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        for _ in 0..ATTEMPTS_MAX {
            // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns a number.
            let number = checked(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) })?;
            let device = open(format!("/dev/loop{number}"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
            let mut config = LoopConfig::new(file.as_raw_fd() as u32);
            // SAFETY: LOOP_CONFIGURE reads one loop_config, which is live and of the kernel's layout.
            match checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw mut config) }) {
                Ok(_) => return Ok(Self { number: number as u32, _open: device }),
                // Another process was faster.
                Err(Errno::BUSY) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::BUSY)
    }

    /// The device that shows the file already.
    pub(crate) fn showing(file: &OwnedFd) -> Result<Option<Self>, Errno> {
        let wanted = fstat(file)?;
        let devices = std::fs::read_dir("/sys/block").map_err(|error| errno_of(&error))?;
        for entry in devices {
            let entry = entry.map_err(|error| errno_of(&error))?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("loop")?.parse::<u32>().ok());
            let Some(number) = number else { continue };
            // Only a device that shows something has it.
            if !entry.path().join("loop").exists() {
                continue;
            }
            // Held open from here on, so that it isn't released between the look and the mount. To read: a device of somebody else's may be
            // read-only.
            let device = match open(format!("/dev/loop{number}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
                Ok(device) => device,
                Err(Errno::NXIO | Errno::NOENT | Errno::NODEV) => continue,
                Err(errno) => return Err(errno),
            };
            let mut shown = LoopInfo::new(0);
            // SAFETY: LOOP_GET_STATUS64 writes one loop_info64, which is live and of the kernel's layout.
            match checked(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64 as _, &raw mut shown) }) {
                Ok(_) => {}
                // Released meanwhile.
                Err(Errno::NXIO) => continue,
                Err(errno) => return Err(errno),
            }
            if (shown.numbers[0], shown.numbers[1]) == (wanted.st_dev, wanted.st_ino) {
                return Ok(Some(Self { number, _open: device }));
            }
        }
        Ok(None)
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

const LOOP_CTL_GET_FREE: u32 = 0x4C82;
const LOOP_CONFIGURE: u32 = 0x4C0A;
const LOOP_GET_STATUS64: u32 = 0x4C05;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_config`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    /// Device and inode of the file, and three more.
    numbers: [u64; 5],
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl LoopConfig {
    /// Without a cache of its own: the filesystem on it has one.
    fn new(fd: u32) -> Self {
        Self { fd, block_size: 0, info: LoopInfo::new(LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO), reserved: [0; 8] }
    }
}

impl LoopInfo {
    fn new(flags: u32) -> Self {
        Self {
            numbers: [0; 5],
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags,
            file_name: [0; 64],
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

const _: () = assert!(size_of::<LoopConfig>() == 304);
const _: () = assert!(size_of::<LoopInfo>() == 232);

fn checked(outcome: libc::c_int) -> Result<libc::c_int, Errno> {
    if outcome < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(outcome)
}
