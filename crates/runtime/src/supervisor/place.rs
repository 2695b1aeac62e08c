//! Where supervisors are found: their control sockets and their last words, in the data directory.
//!
//! A socket's address has room for 107 bytes, and a data directory may be anywhere; so sockets are reached through the open
//! directory, by a path that is short wherever it is.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use saggar_domain::SandboxId;
use saggar_supervisor::control::Final;

/// Where control sockets are.
const CONTROL: &str = "control";
/// Where last words are.
const ENDED: &str = "ended";
/// Where those who make a sandbox that somebody may ask for again show that they are alive.
const MAKERS: &str = "makers";
/// The longest that last words can be: what is kept of 256 execs, in base64, with room.
const FINAL_MAX: u64 = 64 * 1024 * 1024;

/// The places in a data directory.
#[derive(Debug)]
pub(crate) struct Places {
    data: PathBuf,
    control: OwnedFd,
    ended: PathBuf,
}

impl Places {
    /// Opens them, making those that aren't there.
    pub(crate) fn open(data: &Path) -> io::Result<Self> {
        for name in [CONTROL, ENDED, MAKERS] {
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

    /// Every sandbox that has a control socket, or seems to.
    pub(crate) fn sockets(&self) -> io::Result<Vec<SandboxId>> {
        ids(&self.data.join(CONTROL), "sock")
    }

    /// Every sandbox that has last words nobody has taken.
    pub(crate) fn finals(&self) -> io::Result<Vec<SandboxId>> {
        ids(&self.ended, "json")
    }

    /// A sandbox's last words, if it has said them.
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
            // Somebody else has stored them meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// Forgets a sandbox's last words, once they are stored.
    pub(crate) fn remove_final(&self, id: &SandboxId) {
        // One that stays is stored once more at the next start, which changes nothing.
        let _ = std::fs::remove_file(self.ended.join(format!("{id}.json")));
    }

    /// Shows that a sandbox is being made, for as long as this lives; to be had before its row is written. The file has its name only once
    /// it is locked: nobody takes a beginner for dead.
    pub(crate) fn make(&self, id: &SandboxId) -> io::Result<Making> {
        let (path, unfinished) = (self.maker(id), self.data.join(MAKERS).join(format!(".{id}")));
        let locked = File::options().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        flock(&locked, FlockOperation::NonBlockingLockExclusive)?;
        std::fs::rename(&unfinished, &path)?;
        Ok(Making { path, _locked: locked })
    }

    /// Whether whoever makes a sandbox is alive: the kernel lets go of the lock when they die.
    pub(crate) fn is_being_made(&self, id: &SandboxId) -> bool {
        let Ok(file) = File::options().write(true).open(self.maker(id)) else { return false };
        flock(&file, FlockOperation::NonBlockingLockExclusive).is_err()
    }

    /// Forgets the makers that are dead.
    pub(crate) fn remove_dead_makers(&self) -> io::Result<()> {
        for id in ids(&self.data.join(MAKERS), "lock")? {
            if !self.is_being_made(&id) {
                // As above.
                let _ = std::fs::remove_file(self.maker(&id));
            }
        }
        Ok(())
    }

    fn maker(&self, id: &SandboxId) -> PathBuf {
        self.data.join(MAKERS).join(format!("{id}.lock"))
    }

    /// Forgets the socket of a supervisor that is dead.
    pub(crate) fn remove_socket(&self, id: &SandboxId) {
        // As above.
        let _ = std::fs::remove_file(self.data.join(CONTROL).join(format!("{id}.sock")));
    }
}

/// A sandbox is being made.
#[derive(Debug)]
pub(crate) struct Making {
    path: PathBuf,
    _locked: File,
}

impl Drop for Making {
    fn drop(&mut self) {
        // One that stays is nobody's: its lock goes with us.
        let _ = std::fs::remove_file(&self.path);
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
