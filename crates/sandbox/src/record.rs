//! Records: what a sandbox will have on the host, written before any of it is created.
//!
//! A record is a file named after its sandbox, locked by the process that owns the sandbox. The lock is released when
//! that process dies, however it dies; a process that can then take it may remove everything the record names. A record
//! becomes visible only once it is complete and locked, so a live one never looks dead.

use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, fcntl_lock, linkat, openat, renameat, unlinkat};
use rustix::io::Errno;
use saggar_domain::{SandboxId, VolumeId};
use saggar_jail::Rule;
use serde::{Deserialize, Serialize};

use crate::changes::Name;
use crate::holdback::Before;
use crate::host_tree::HostTree;

const SCHEMA: &str = "saggar.record/v1";
const RECORD_LEN_MAX: usize = 1 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holdings {
    pub(crate) schema: String,
    /// Directories in cgroup hierarchies.
    pub(crate) cgroups: Vec<String>,
    /// The workspace that contains placeholders.
    pub(crate) workspace: Option<String>,
    /// Its identity, independent of its name: another mount of it is the same place.
    #[serde(default)]
    workspace_device: u64,
    #[serde(default)]
    workspace_inode: u64,
    /// Paths in it that stand in for absent protected ones, parents first.
    pub(crate) placeholders: Vec<String>,
    /// Its git directories, in which a dead sandbox may have left new links.
    #[serde(default)]
    pub(crate) git_directories: Vec<String>,
    /// Existing links of a workspace that is a git directory itself.
    #[serde(default)]
    pub(crate) git_links: Vec<Name>,
    /// The previous state of the workspace, if something may have to be held back.
    #[serde(default)]
    pub(crate) before: Option<Before>,
    /// Start of the sandbox, by the wall clock.
    #[serde(default)]
    pub(crate) started_ns: i128,
    /// Volumes that it uses. They need no removal: this is how others learn who uses one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) volumes: Vec<VolumeId>,
}

/// PID 1 of a sandbox. The start time tells it from a later process with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FirstProcess {
    pub(crate) pid: i32,
    pub(crate) started: u64,
}

/// A record we own.
#[derive(Debug)]
pub(crate) struct Record {
    file: std::fs::File,
    name: String,
}

impl Holdings {
    pub(crate) fn new() -> Self {
        Self { schema: SCHEMA.to_owned(), ..Self::default() }
    }

    pub(crate) fn set_workspace(&mut self, workspace: &HostTree) {
        self.workspace = Some(workspace.path.display().to_string());
        (self.workspace_device, self.workspace_inode) = (workspace.device, workspace.inode);
    }

    pub(crate) fn is_of(&self, workspace: &HostTree) -> bool {
        self.workspace.is_some() && (self.workspace_device, self.workspace_inode) == (workspace.device, workspace.inode)
    }
}

impl Record {
    /// Writes and locks a record, and only then makes it visible.
    pub(crate) fn create(directory: BorrowedFd<'_>, id: &SandboxId, holdings: &Holdings) -> std::io::Result<Self> {
        let mut line = serde_json::to_vec(holdings)?;
        line.push(b'\n');
        if line.len() >= RECORD_LEN_MAX {
            return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "a record of more than 1 MiB"));
        }
        let name = id.as_str().to_owned();
        match openat(directory, ".", OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o600)) {
            Ok(fd) => {
                let file = write_locked(fd, &line)?;
                let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
                linkat(rustix::fs::CWD, own.as_str(), directory, name.as_str(), AtFlags::SYMLINK_FOLLOW)?;
                Ok(Self { file, name })
            }
            // Overlay filesystems of older kernels, and some network filesystems, don't support unnamed files.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let beside = format!("{UNFINISHED}{name}");
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let fd = openat(directory, beside.as_str(), flags, Mode::from_raw_mode(0o600))?;
                let file = write_locked(fd, &line)?;
                renameat(directory, beside.as_str(), directory, name.as_str())?;
                Ok(Self { file, name })
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Adds the identity of PID 1. The reader ignores a line that is cut short by a death, and then PID 1 exits by
    /// itself.
    pub(crate) fn add_first_process(&mut self, first: FirstProcess) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(&first)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }

    /// Removes the record: the last step, once everything it names is gone.
    pub(crate) fn remove(self, directory: BorrowedFd<'_>) -> std::io::Result<()> {
        unlinkat(directory, self.name.as_str(), AtFlags::empty()).map_err(Into::into)
    }
}

/// Prefix of incomplete records, on filesystems where they need a name.
pub(crate) const UNFINISHED: &str = ".unfinished-";

fn write_locked(fd: OwnedFd, line: &[u8]) -> std::io::Result<std::fs::File> {
    fcntl_lock(&fd, FlockOperation::NonBlockingLockExclusive)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(line)?;
    Ok(file)
}

/// A record of another process.
#[derive(Debug)]
pub(crate) enum Found {
    /// Its owner is alive.
    Live(Holdings),
    /// Its owner is dead, and we hold its lock now.
    Dead(Dead),
    /// It was removed in the meantime.
    Gone,
}

/// A record whose owner died.
#[derive(Debug)]
pub(crate) struct Dead {
    pub(crate) holdings: Holdings,
    pub(crate) first: Option<FirstProcess>,
    _locked: OwnedFd,
}

/// Examines a record. Taking the lock of a dead one keeps other reapers away.
pub(crate) fn inspect(directory: BorrowedFd<'_>, name: &str) -> std::io::Result<Found> {
    let fd = match openat(directory, name, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Found::Gone),
        other => other?,
    };
    let is_dead = match fcntl_lock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => true,
        Err(Errno::AGAIN | Errno::ACCESS) => false,
        Err(errno) => return Err(errno.into()),
    };
    let stat = rustix::fs::fstat(&fd)?;
    if stat.st_nlink == 0 {
        return Ok(Found::Gone);
    }
    let is_ours =
        stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o7022 == 0 && stat.st_nlink == 1;
    let is_ours = is_ours || !Rule::OwnRecords.is_on();
    if !is_ours || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, "not a record of ours"));
    }
    let text = read_whole(&fd)?;
    let mut lines = text.split(|byte| *byte == b'\n');
    // A record is visible only once it is complete, so an unreadable one isn't ours to interpret.
    let holdings: Holdings = serde_json::from_slice(lines.next().unwrap_or_default())?;
    if holdings.schema != SCHEMA {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "a record of another schema"));
    }
    let first = lines.next().and_then(|line| serde_json::from_slice(line).ok());
    Ok(if is_dead { Found::Dead(Dead { holdings, first, _locked: fd }) } else { Found::Live(holdings) })
}

/// Reads by position through the only descriptor: closing a second one would drop the lock.
fn read_whole(fd: &OwnedFd) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let mut piece = [0u8; 4096];
    while text.len() < RECORD_LEN_MAX {
        match rustix::io::pread(fd, &mut piece, text.len() as u64)? {
            0 => break,
            length => text.extend_from_slice(&piece[..length]),
        }
    }
    Ok(text)
}

/// Start time of a process, in the kernel's ticks since boot.
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything; the fields after it are numbered from 3.
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}
