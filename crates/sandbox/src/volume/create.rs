//! Makes a volume: complete under another name first, then named.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, fchmod, fsync, openat, renameat_with, unlinkat};
use rustix::io::Errno;
use saggar_domain::{ByteSize, Code, Problem, Sharing, Timestamp, VolumeId, VolumeName, VolumeRecord};

use saggar_jail::Rule;

use super::project::{NEW, Volumes};
use crate::ext4::{self, BYTES_MIN, Lifetime, Trouble};
use crate::fail_point::pass;
use crate::ids::random;
use crate::loop_device::LoopDevice;

/// Sizes are whole blocks.
const BLOCK: u64 = 4096;
/// How much larger a volume is if its size is switched off.
const OFF_FACTOR: u64 = 4;
/// Writable by every user of the sandboxes: the boundary is the sandbox, and a volume is used by sandboxes with different users.
const ROOT_MODE: u32 = 0o777;

/// A volume to make.
#[derive(Clone, Debug)]
pub struct NewVolume {
    pub name: VolumeName,
    pub size: ByteSize,
    pub sharing: Sharing,
    pub now: Timestamp,
    pub quota: VolumeQuota,
}

/// How much a project may have.
#[derive(Clone, Copy, Debug)]
pub struct VolumeQuota {
    pub count: u64,
    pub bytes: u64,
}

impl VolumeQuota {
    pub const NONE: Self = Self { count: u64::MAX, bytes: u64::MAX };
}

impl Volumes {
    /// All of its size is taken from the disk at once.
    pub fn create(&self, new: &NewVolume) -> Result<VolumeRecord, Problem> {
        if !rustix::process::geteuid().is_root() {
            return Err(super::hold::not_root());
        }
        let bytes = new.size.bytes().checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX);
        if bytes < BYTES_MIN {
            return Err(Problem::new(
                Code::InvalidValue,
                format!("a volume of {} is too small", new.size),
                "ask for at least 16M",
            ));
        }
        let fail = |what: &str| {
            let what = what.to_owned();
            move |error: std::io::Error| {
                Problem::new(
                    Code::DataDirectory,
                    format!("the volume can't be made: {what}: {}", error.kind()),
                    "check the data directory's permissions and its disk",
                )
            }
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.root).map_err(fail("its directory"))?;
        let _lock = self.lock()?;
        self.sweep();
        self.check_new(new, bytes)?;
        let bytes = if Rule::VolumeSize.is_on() { bytes } else { bytes.saturating_mul(OFF_FACTOR) };
        let id = VolumeId::from_random(random().map_err(std::io::Error::other).map_err(fail("its id"))?);
        let record = VolumeRecord::new(id, new.name.clone(), ByteSize::from_bytes(bytes), new.sharing, new.now);
        let staged = self.root.join(format!("{NEW}{}", record.id));
        std::fs::DirBuilder::new().mode(0o700).create(&staged).map_err(fail("its directory"))?;
        let made = self.fill(&staged, &record).and_then(|()| {
            renameat_with(CWD, &staged, CWD, self.root.join(record.name.as_str()), RenameFlags::NOREPLACE)
                .and_then(|()| sync_directory(&self.root))
                .map_err(|errno| fail("naming it")(errno.into()))
        });
        if made.is_err() {
            // Otherwise the next one that makes or removes a volume tries again.
            let _ = std::fs::remove_dir_all(&staged);
        }
        made?;
        pass("volume/named");
        Ok(record)
    }

    fn check_new(&self, new: &NewVolume, bytes: u64) -> Result<(), Problem> {
        let there = self.list()?;
        if there.iter().any(|record| record.name == new.name) {
            return Err(Problem::new(
                Code::VolumeExists,
                format!("there is a volume {:?} already", new.name.as_str()),
                "choose another name, or remove the volume first",
            ));
        }
        let taken: u64 = there.iter().map(|record| record.size.bytes()).sum();
        let VolumeQuota { count, bytes: most } = new.quota;
        if there.len() as u64 >= count {
            return Err(Problem::new(
                Code::TooMany,
                format!("the project has {} volumes, and {count} are allowed", there.len()),
                "remove a volume that isn't needed, or ask the operator for the setting `volumes_max`",
            ));
        }
        if taken.saturating_add(bytes) > most {
            return Err(Problem::new(
                Code::TooMany,
                format!(
                    "volumes of {} are allowed in the project, {} are taken, and {} more were asked for",
                    ByteSize::from_bytes(most),
                    ByteSize::from_bytes(taken),
                    ByteSize::from_bytes(bytes)
                ),
                "ask for less, remove a volume that isn't needed, or ask the operator for the setting `volumes_bytes_max`",
            ));
        }
        Ok(())
    }

    fn fill(&self, staged: &Path, record: &VolumeRecord) -> Result<(), Problem> {
        pass("volume/begun");
        content(staged, record.size.bytes())
            .map_err(|trouble| trouble.into_problem(&format!("volume {}", record.name), "use another host"))?;
        let write = || {
            let document = serde_json::to_vec(record)?;
            let mut file =
                std::fs::File::options().write(true).create_new(true).mode(0o600).open(staged.join("volume.json"))?;
            file.write_all(&document)?;
            file.sync_all()?;
            sync_directory(staged)?;
            Ok::<_, std::io::Error>(())
        };
        write().map_err(|error| {
            Problem::new(
                Code::DataDirectory,
                format!("the record of volume {} can't be written: {}", record.name, error.kind()),
                "check the data directory's permissions and its disk",
            )
        })?;
        pass("volume/recorded");
        Ok(())
    }
}

fn content(staged: &Path, bytes: u64) -> Result<(), Trouble> {
    if !LoopDevice::is_supported() {
        return Err(Trouble::NoLoopDevices);
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(CWD, staged.join("content"), flags, Mode::from_raw_mode(0o600))
        .map_err(Trouble::at("creating its file"))?;
    ext4::allocate(&file, bytes)?;
    pass("volume/allocated");
    ext4::format(&file, &[])?;
    // Where the disk can't zero blocks, mkfs.ext4 frees them instead.
    ext4::allocate(&file, bytes)?;
    pass("volume/formatted");
    let device = LoopDevice::attach(&file).map_err(Trouble::at("getting a loop device"))?;
    let mount = ext4::mount(&device, Lifetime::Lasting).map_err(Trouble::at("mounting it"))?;
    prepare(&mount).map_err(Trouble::at("preparing its root"))?;
    pass("volume/prepared");
    drop(mount);
    fsync(&file).map_err(Trouble::at("writing it to the disk"))
}

/// Everyone inside may write the root; and no directory of the host's root is in it.
fn prepare(mount: &OwnedFd) -> Result<(), Errno> {
    let root = openat(mount, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    fchmod(&root, Mode::from_raw_mode(ROOT_MODE))?;
    match unlinkat(&root, "lost+found", AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno),
    }
    rustix::fs::syncfs(&root)
}

pub(super) fn sync_directory(path: &Path) -> Result<(), Errno> {
    let directory = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    fsync(directory)
}
