//! The volumes of one project: which there are, and which sandboxes use them.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use saggar_domain::{Code, Problem, SandboxId, VOLUME_RECORD_BYTES_MAX, VolumeId, VolumeName, VolumeRecord};

use crate::data::DataDirectory;
use crate::reaper::names;
use crate::record::{Found, inspect};

const RECORD: &str = "volume.json";
const CONTENT: &str = "content";
const LOCK: &str = ".lock";
/// Prefixes of directories that are no volume yet, and no longer.
pub(super) const NEW: &str = ".new-";
pub(super) const GONE: &str = ".gone-";
/// Maximum number of names that a message lists.
const LISTED_MAX: usize = 8;

/// The volumes of one project.
#[derive(Clone, Debug)]
pub struct Volumes {
    pub(super) root: PathBuf,
}

impl Volumes {
    /// `project` is [`crate::LOCAL_PROJECT`] or the id of a server's project.
    pub fn new(data: &DataDirectory, project: &str) -> Self {
        Self { root: data.path().join("volumes").join(project) }
    }

    /// All of them, by name.
    pub fn list(&self) -> Result<Vec<VolumeRecord>, Problem> {
        let entries = match std::fs::read_dir(&self.root) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(unlisted(&error)),
        };
        let mut records = Vec::new();
        for entry in entries {
            let name = entry.map_err(|error| unlisted(&error))?.file_name();
            let Some(name) = name.to_str().and_then(VolumeName::parse) else { continue };
            // One that was removed meanwhile is left out.
            if let Some(record) = self.find(&name)? {
                records.push(record);
            }
        }
        records.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(records)
    }

    /// `None` if there is none of this name.
    pub fn find(&self, name: &VolumeName) -> Result<Option<VolumeRecord>, Problem> {
        Ok(self.open(name)?.map(|(_, record)| record))
    }

    /// The same, and an error if there is none.
    pub fn get(&self, name: &VolumeName) -> Result<VolumeRecord, Problem> {
        self.find(name)?.ok_or_else(|| self.missing(name))
    }

    /// The record's file too, which is where the lock of its users is.
    pub(super) fn open(&self, name: &VolumeName) -> Result<Option<(OwnedFd, VolumeRecord)>, Problem> {
        let Some(file) = self.open_record(name)? else { return Ok(None) };
        let unreadable = |why: &dyn std::fmt::Display| {
            Problem::new(
                Code::DataDirectory,
                format!("volume {name} can't be used: its record can't be read: {why}"),
                "use the version of saggar that wrote it, or restore the record from a backup; `saggar volume rm` removes the volume",
            )
        };
        let copy = file.try_clone().map_err(|error| unreadable(&error.kind()))?;
        let mut document = Vec::new();
        std::fs::File::from(copy)
            .take(VOLUME_RECORD_BYTES_MAX)
            .read_to_end(&mut document)
            .map_err(|error| unreadable(&error.kind()))?;
        let record = VolumeRecord::read(&document).map_err(|why| unreadable(&why))?;
        if record.name != *name {
            return Err(unreadable(&"it is of another volume"));
        }
        Ok(Some((file, record)))
    }

    pub(super) fn open_record(&self, name: &VolumeName) -> Result<Option<OwnedFd>, Problem> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match open(self.record_path(name), flags, Mode::empty()) {
            Ok(file) => Ok(Some(file)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Problem::new(
                Code::DataDirectory,
                format!("volume {name} can't be used: its record can't be opened: {errno}"),
                "check the data directory's permissions and its disk",
            )),
        }
    }

    pub(super) fn record_path(&self, name: &VolumeName) -> PathBuf {
        self.root.join(name.as_str()).join(RECORD)
    }

    pub(super) fn content_path(&self, name: &VolumeName) -> PathBuf {
        self.root.join(name.as_str()).join(CONTENT)
    }

    pub(super) fn missing(&self, name: &VolumeName) -> Problem {
        let mut known: Vec<String> =
            self.list().unwrap_or_default().into_iter().map(|record| record.name.to_string()).collect();
        known.truncate(LISTED_MAX);
        let listed =
            if known.is_empty() { "there are none yet".to_owned() } else { format!("there are: {}", known.join(", ")) };
        Problem::new(
            Code::NoSuchVolume,
            format!("there is no volume {:?}; {listed}", name.as_str()),
            format!(
                "create it with `saggar volume create {name} --size SIZE`, or on a server with POST /api/v1/volumes"
            ),
        )
    }

    /// Held while volumes are made and removed: quotas count what there is, and what is half made has an owner.
    pub(super) fn lock(&self) -> Result<OwnedFd, Problem> {
        let fail = |errno: Errno| {
            Problem::new(
                Code::DataDirectory,
                format!("the volumes of the project can't be locked: {errno}"),
                "check the data directory's permissions and its disk",
            )
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = open(self.root.join(LOCK), flags, Mode::from_raw_mode(0o600)).map_err(fail)?;
        flock(&lock, FlockOperation::LockExclusive).map_err(fail)?;
        Ok(lock)
    }

    /// Removes what killed processes left half made or half removed, and says how many there were. Under the lock.
    pub(super) fn sweep(&self) -> u64 {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return 0 };
        let is_rest = |name: &str| name.starts_with(NEW) || name.starts_with(GONE);
        let rests = entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_rest));
        // What can't be removed now is tried again the next time.
        rests.filter(|entry| std::fs::remove_dir_all(entry.path()).is_ok()).count() as u64
    }
}

/// Removes what killed processes left of volumes in all projects, and says how many there were.
pub fn collect_volumes(data: &DataDirectory) -> u64 {
    let Ok(projects) = std::fs::read_dir(data.path().join("volumes")) else { return 0 };
    let collect = |path: &Path| {
        let volumes = Volumes { root: path.to_owned() };
        let _lock = volumes.lock().ok()?;
        Some(volumes.sweep())
    };
    projects.flatten().filter_map(|project| collect(&project.path())).sum()
}

/// The volumes in use, each with the live sandboxes that use it.
pub fn volume_users(data: &DataDirectory) -> BTreeMap<VolumeId, Vec<SandboxId>> {
    let records = data.sandboxes();
    let mut users: BTreeMap<VolumeId, Vec<SandboxId>> = BTreeMap::new();
    let mut all = names(records);
    all.sort();
    for name in all {
        let Some(sandbox) = SandboxId::parse(&name) else { continue };
        // A dead one is about to be reaped, and one that can't be read says nothing.
        let Ok(Found::Live(holdings)) = inspect(records, &name) else { continue };
        for volume in holdings.volumes {
            users.entry(volume).or_default().push(sandbox.clone());
        }
    }
    users
}
fn unlisted(error: &std::io::Error) -> Problem {
    Problem::new(
        Code::DataDirectory,
        format!("the volumes can't be listed: {}", error.kind()),
        "check the data directory's permissions and its disk",
    )
}
