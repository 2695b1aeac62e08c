//! Storage on disk: the changes of one sandbox in a filesystem of their own, whose size is the limit.
//!
//! It is an ext4 in a file of the data directory, behind a loop device. The file has no name, the device is released with its last user,
//! and the mount belongs to nobody until the sandbox attaches it: when the sandbox and its supervisor are gone, however they ended, the
//! kernel frees all of it. So there is nothing to record and nothing to reap.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, Mode, OFlags, SeekFrom, ftruncate, memfd_create, open, seek};
use rustix::io::Errno;
use saggar_domain::{ByteSize, Code, Problem};
use saggar_jail::Mapping;

use crate::data::DataDirectory;
use crate::ext4::{self, BYTES_MIN, Lifetime, Trouble};
use crate::loop_device::LoopDevice;
use crate::ranges::STORE_IDS;

/// Copied at once.
const CHUNK: usize = 256 << 10;

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
                format!("storage on disk needs a limit of at least {}", ByteSize::from_bytes(BYTES_MIN)),
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
    format(&file, bytes)?;
    let device = LoopDevice::attach(&file).map_err(Trouble::at("getting a loop device"))?;
    let mount = ext4::mount(&device, Lifetime::OfItsUser).map_err(Trouble::at("mounting it"))?;
    let mapping = ext4::map_ids(&mount, base, false)?;
    Ok(Disk { mount, mapping })
}

/// Makes the filesystem in memory, and copies what it consists of: a few hundred kilobytes. On the disk, mkfs would wait several times
/// until everything is written through, which takes longer than the rest of a start.
fn format(file: &OwnedFd, bytes: u64) -> Result<(), Trouble> {
    let made = memfd_create("disk", MemfdFlags::CLOEXEC)
        .and_then(|made| ftruncate(&made, bytes).map(|()| made))
        .map_err(Trouble::at("preparing mkfs.ext4"))?;
    ext4::format(&made, &["-J", "size=4"])?;
    copy(&made, file).map_err(|error| Trouble::Failed { step: "copying it", why: error.kind().to_string() })
}

/// Copies everything but holes.
fn copy(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    let (from, to) = (File::from(from.try_clone()?), File::from(to.try_clone()?));
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    loop {
        at = match seek(&from, SeekFrom::Data(at)) {
            // Only a hole is left.
            Err(Errno::NXIO) => return Ok(()),
            other => other?,
        };
        let end = seek(&from, SeekFrom::Hole(at))?;
        while at < end {
            let most = CHUNK.min(usize::try_from(end - at).unwrap_or(CHUNK));
            from.read_exact_at(&mut buffer[..most], at)?;
            to.write_all_at(&buffer[..most], at)?;
            at += most as u64;
        }
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
