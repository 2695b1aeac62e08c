//! Paths of supervisors in the data directory: their control sockets and their last words.
//!
//! A socket's address has room for 107 bytes, and a data directory may be anywhere; so sockets are reached through
//! the open directory, by a path that is always short.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use saggar_domain::SandboxId;
use saggar_supervisor::control::Final;

/// Directory of control sockets.
const CONTROL: &str = "control";
/// Directory of last words.
const ENDED: &str = "ended";
/// Maximum size of last words: the kept output of 256 execs, in base64, with a margin.
const FINAL_MAX: u64 = 64 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Places {
    data: PathBuf,
    control: OwnedFd,
    ended: PathBuf,
}

impl Places {
    /// Opens the directories, creating missing ones.
    pub(crate) fn open(data: &Path) -> io::Result<Self> {
        for name in [CONTROL, ENDED] {
            match rustix::fs::mkdir(data.join(name), Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let control = rustix::fs::open(data.join(CONTROL), flags, Mode::empty())?;
        Ok(Self { data: data.to_owned(), control, ended: data.join(ENDED) })
    }

    pub(crate) fn data(&self) -> &Path {
        &self.data
    }

    /// The address of a sandbox's control socket.
    pub(crate) fn socket(&self, id: &SandboxId) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{id}.sock", self.control.as_raw_fd()))
    }

    /// Every sandbox that has a control socket file.
    pub(crate) fn sockets(&self) -> io::Result<Vec<SandboxId>> {
        ids(&self.data.join(CONTROL), "sock")
    }

    /// Every sandbox whose last words are not stored yet.
    pub(crate) fn finals(&self) -> io::Result<Vec<SandboxId>> {
        ids(&self.ended, "json")
    }

    /// A sandbox's last words, if there are any.
    pub(crate) fn read_final(&self, id: &SandboxId) -> io::Result<Option<Final>> {
        let path = self.ended.join(format!("{id}.json"));
        let length = match std::fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if length > FINAL_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            // Another process has stored them in the meantime.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Removes a sandbox's last words, once they are stored.
    pub(crate) fn remove_final(&self, id: &SandboxId) {
        // A leftover is stored again at the next start, which changes nothing.
        let _ = std::fs::remove_file(self.ended.join(format!("{id}.json")));
    }

    /// Removes the socket of a dead supervisor.
    pub(crate) fn remove_socket(&self, id: &SandboxId) {
        // A leftover is removed at the next start.
        let _ = std::fs::remove_file(self.data.join(CONTROL).join(format!("{id}.sock")));
    }
}

fn ids(directory: &Path, extension: &str) -> io::Result<Vec<SandboxId>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let name = entry?.file_name();
        let path = Path::new(&name);
        if path.extension() == Some(OsStr::new(extension)) {
            found.extend(path.file_stem().and_then(OsStr::to_str).and_then(SandboxId::parse));
        }
    }
    Ok(found)
}
