//! Holds a volume for one user, and mounts it.
//!
//! The lock is held for as long as the user lives and is released by the kernel. Mounting is serialized by a lock of its own: two users who both
//! attached the file would write one filesystem through two caches.

use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open, stat};
use rustix::io::{Errno, pread};
use saggar_domain::{Access, Code, Problem, Sharing, VolumeMount, VolumeName, VolumeRecord};
use saggar_jail::{Mapping, Rule};

use super::project::{Volumes, volume_users};
use crate::data::DataDirectory;
use crate::ext4::{self, Lifetime, Trouble};
use crate::loop_device::LoopDevice;
use crate::reaper::{names, reap};
use crate::record::{Found, inspect};

/// How often a volume is looked up again because it was replaced meanwhile.
const LOOKUPS_MAX: u32 = 16;

/// A volume that can't be removed until this is dropped, nor used by another if it is exclusive.
#[derive(Debug)]
pub(crate) struct HeldVolume {
    volumes: Volumes,
    pub(crate) record: VolumeRecord,
    _lock: OwnedFd,
}

/// Whom a volume is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// Beside others, if the volume is shared.
    User,
    /// Alone.
    Alone,
}

impl Volumes {
    pub(crate) fn hold(&self, data: &DataDirectory, wanted: &VolumeMount) -> Result<HeldVolume, Problem> {
        if !rustix::process::geteuid().is_root() {
            return Err(not_root());
        }
        let (lock, record) = self.locked(data, &wanted.name, Hold::User)?;
        Ok(HeldVolume { volumes: self.clone(), record, _lock: lock })
    }

    /// Locks the volume of this name.
    pub(super) fn locked(
        &self,
        data: &DataDirectory,
        name: &VolumeName,
        hold: Hold,
    ) -> Result<(OwnedFd, VolumeRecord), Problem> {
        for _ in 0..LOOKUPS_MAX {
            let Some((lock, record)) = self.open(name)? else { return Err(self.missing(name)) };
            let operation = match (record.sharing, hold) {
                (Sharing::Shared, Hold::User) => FlockOperation::NonBlockingLockShared,
                (Sharing::Shared, Hold::Alone) | (Sharing::Exclusive, _) => FlockOperation::NonBlockingLockExclusive,
            };
            match flock(&lock, operation) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(in_use(data, &record)),
                Err(errno) => return Err(unusable(&record, &format!("locking it: {errno}"))),
            }
            if !self.is_named(name, &lock) {
                continue;
            }
            if operation == FlockOperation::NonBlockingLockExclusive {
                wait_for_the_dead(data, &record)?;
            }
            return Ok((lock, record));
        }
        Err(self.missing(name))
    }

    /// Whether the name still leads to this record.
    pub(super) fn is_named(&self, name: &VolumeName, lock: &OwnedFd) -> bool {
        match (fstat(lock), stat(self.record_path(name))) {
            (Ok(ours), Ok(named)) => (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino),
            _ => false,
        }
    }
}

/// A killed supervisor releases its lock a moment before its sandbox is dead. A record that can't be read may be of such a sandbox.
fn wait_for_the_dead(data: &DataDirectory, record: &VolumeRecord) -> Result<(), Problem> {
    let records = data.sandboxes();
    let may_use = |name: &String| match inspect(records, name) {
        Ok(Found::Dead(dead)) => dead.holdings.volumes.contains(&record.id),
        Ok(Found::Live(_) | Found::Gone) => false,
        Err(_) => true,
    };
    if !names(records).iter().any(may_use) {
        return Ok(());
    }
    reap(data);
    let Some(sandbox) = names(records).into_iter().find(may_use) else { return Ok(()) };
    let volume = &record.name;
    let (what, help) = match inspect(records, &sandbox) {
        Err(_) => (
            format!("volume {volume} may be in use by sandbox {sandbox}, whose record can't be read"),
            "use the version of saggar that wrote the record; or, if nothing of that sandbox runs, remove it from `sandboxes` in the data directory",
        ),
        Ok(_) => (
            format!("volume {volume} was used by sandbox {sandbox}, which is dead but can't be removed yet"),
            "try again in a moment",
        ),
    };
    Err(Problem::new(Code::VolumeInUse, what, help))
}

impl HeldVolume {
    /// A mount for a sandbox whose ids begin at `base`, without a place yet.
    pub(crate) fn mount(&self, base: u32, access: Access) -> Result<(OwnedFd, Mapping), Problem> {
        let mount = self.mount_plain()?;
        let is_read_only = access == Access::ReadOnly && Rule::ReadOnlyMounts.is_on();
        let mapping = ext4::map_ids(&mount, base, is_read_only).map_err(|trouble| self.problem(trouble))?;
        Ok((mount, mapping))
    }

    /// The same with the ids that are on disk.
    pub(super) fn mount_plain(&self) -> Result<OwnedFd, Problem> {
        let name = &self.record.name;
        let fail = |what: &'static str| move |errno: Errno| unusable(&self.record, &format!("{what}: {errno}"));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let turn = open(self.volumes.root.join(name.as_str()), flags, Mode::empty()).map_err(fail("opening it"))?;
        flock(&turn, FlockOperation::LockExclusive).map_err(fail("waiting for its turn"))?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(self.volumes.content_path(name), flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => damaged(&self.record, "its content is missing"),
            other => unusable(&self.record, &format!("opening its content: {other}")),
        })?;
        self.check(&file)?;
        let device = match LoopDevice::showing(&file).map_err(fail("looking for its loop device"))? {
            Some(device) => device,
            None => LoopDevice::attach(&file).map_err(fail("getting a loop device"))?,
        };
        ext4::mount(&device, Lifetime::Lasting).map_err(|errno| match errno {
            Errno::UCLEAN | Errno::BADMSG | Errno::INVAL | Errno::IO => {
                damaged(&self.record, &format!("the kernel doesn't mount it: {errno}"))
            }
            other => unusable(&self.record, &format!("mounting it: {other}")),
        })
    }

    /// Refuses a file that isn't what was made, and one whose filesystem has met an error. Gives a file with holes,
    /// such as a sparse copy, its blocks again.
    fn check(&self, file: &OwnedFd) -> Result<(), Problem> {
        let fail = |errno: Errno| unusable(&self.record, &format!("examining its content: {errno}"));
        let stat = fstat(file).map_err(fail)?;
        let bytes = self.record.size.bytes();
        if stat.st_size as u64 != bytes {
            return Err(damaged(&self.record, &format!("its content has {} bytes instead of {bytes}", stat.st_size)));
        }
        let mut superblock = [0u8; 64];
        let length = pread(file, &mut superblock, SUPERBLOCK).map_err(fail)?;
        let number = |at: usize| u16::from_le_bytes([superblock[at], superblock[at + 1]]);
        if length < superblock.len() || number(MAGIC_AT) != MAGIC {
            return Err(damaged(&self.record, "its content is no filesystem"));
        }
        if number(STATE_AT) & STATE_ERRORS != 0 {
            return Err(damaged(&self.record, "its filesystem has met an error"));
        }
        ext4::allocate(file, bytes).map_err(|trouble| self.problem(trouble))
    }

    fn problem(&self, trouble: Trouble) -> Problem {
        trouble.into_problem(&format!("volume {}", self.record.name), "leave it out")
    }
}

/// Where ext4's superblock begins, and what is checked of it.
const SUPERBLOCK: u64 = 1024;
const MAGIC_AT: usize = 0x38;
const MAGIC: u16 = 0xEF53;
const STATE_AT: usize = 0x3A;
const STATE_ERRORS: u16 = 2;

pub(crate) fn not_root() -> Problem {
    Problem::new(
        Code::UnsupportedCapability,
        "volumes need root: an ordinary user can't limit the size of a directory",
        "run saggar as root; or keep files with --mount DIR:/path:rw, which has no limit",
    )
}

pub(super) fn in_use(data: &DataDirectory, record: &VolumeRecord) -> Problem {
    let users: Vec<String> =
        volume_users(data).remove(&record.id).unwrap_or_default().iter().map(ToString::to_string).collect();
    let by = match users.as_slice() {
        // It is being made into one, or removed, or its content is read.
        [] => "is in use".to_owned(),
        [one] => format!("is in use by sandbox {one}"),
        many => format!("is in use by sandboxes {}", many.join(", ")),
    };
    let help = match record.sharing {
        Sharing::Exclusive => "end that sandbox first; a volume for several sandboxes at once is made with --shared",
        Sharing::Shared => "end its sandboxes first",
    };
    Problem::new(Code::VolumeInUse, format!("volume {} {by}", record.name), help)
}

fn unusable(record: &VolumeRecord, why: &str) -> Problem {
    Problem::new(
        Code::DataDirectory,
        format!("volume {} can't be used: {why}", record.name),
        "`saggar doctor` shows whether this host supports volumes; check the data directory's disk",
    )
}

fn damaged(record: &VolumeRecord, why: &str) -> Problem {
    Problem::new(
        Code::DataDirectory,
        format!("volume {} is damaged: {why}", record.name),
        "repair it with `saggar volume repair`, or restore it from a backup; nothing in it was changed",
    )
}
