//! Storage on disk: the changes of one sandbox in a filesystem of their own, whose size is the limit.
//!
//! It is an ext4 in a file of the data directory, behind a loop device. The file has no name, the device is released with its last user,
//! and the mount belongs to nobody until the sandbox attaches it: when the sandbox and its supervisor are gone, however they ended, the
//! kernel frees all of it. So there is nothing to record and nothing to reap.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use saggar_domain::{Code, Problem};
use saggar_jail::Mapping;

use crate::data::DataDirectory;
use crate::ext4::{self, BYTES_MIN, Trouble};
use crate::loop_device::LoopDevice;
use crate::ranges::STORE_IDS;

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
        make(data, bytes, base).map_err(|trouble| trouble.into_problem("storage on disk", "keep the files in memory"))
    }
}

fn make(data: &DataDirectory, bytes: u64, base: u32) -> Result<Disk, Trouble> {
    if !LoopDevice::is_supported() {
        return Err(Trouble::NoLoopDevices);
    }
    // A file without a name.
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = open(data.path(), flags, Mode::from_raw_mode(0o600)).map_err(Trouble::at("creating its file"))?;
    ext4::allocate(&file, bytes)?;
    ext4::format(&file, &["-J", "size=4"])?;
    let device = LoopDevice::attach(&file).map_err(Trouble::at("getting a loop device"))?;
    let mount = ext4::mount(&device).map_err(Trouble::at("mounting it"))?;
    let mapping = ext4::map_ids(&mount, base, false)?;
    Ok(Disk { mount, mapping })
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
