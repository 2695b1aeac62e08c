//! The data directory, which holds records of live sandboxes, so that the leftovers of a killed process can be found.
//!
//! It must have mode 0700 and belong to us, or it is refused: write access to a record would let a user have
//! directories removed.

use std::fs::DirEntry;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, fstat, open, openat};
use rustix::io::Errno;
use saggar_domain::{Code, Problem, SandboxId};
use saggar_supervisor::control::Final;

use crate::borrowed::borrowed_root;
use crate::placeholder::Gate;

/// Prefix of the names of `doctor`'s workspaces.
const TRIAL: &str = "trial-";

/// An open data directory.
#[derive(Debug)]
pub struct DataDirectory {
    path: PathBuf,
    sandboxes: OwnedFd,
}

impl DataDirectory {
    /// Opens it, creating it if it doesn't exist. `given` takes precedence over the environment, and that over the
    /// default.
    pub fn open(given: Option<&Path>) -> Result<Self, Problem> {
        let path = match given {
            Some(path) => path.to_owned(),
            None => Self::default_path()?,
        };
        let fail = |what: &str| {
            let problem = Problem::new(
                Code::DataDirectory,
                format!("the data directory {what}"),
                "name a directory that only you can access (mode 0700) with --data-dir or SAGGAR_DATA_DIR",
            );
            // The default directory belongs to the host's root.
            borrowed_root().unwrap_or(problem)
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = match open(&path, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                std::fs::DirBuilder::new()
                    .recursive(true)
                    .mode(0o700)
                    .create(&path)
                    .map_err(|error| fail(&format!("can't be made: {}", error.kind())))?;
                open(&path, flags, Mode::empty())
            }
            other => other,
        };
        let top = opened.map_err(|errno| fail(&format!("can't be opened: {errno}")))?;
        let stat = fstat(&top).map_err(|errno| fail(&format!("can't be examined: {errno}")))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            return Err(fail("belongs to another user"));
        }
        if stat.st_mode & 0o022 != 0 {
            // Another user may already have put records there.
            return Err(fail("can be written by others"));
        }
        if stat.st_mode & 0o077 != 0 {
            rustix::fs::fchmod(&top, Mode::from_raw_mode(0o700))
                .map_err(|errno| fail(&format!("can't be made private: {errno}")))?;
        }
        let sandboxes = match openat(&top, "sandboxes", flags, Mode::empty()) {
            Err(Errno::NOENT) => match rustix::fs::mkdirat(&top, "sandboxes", Mode::from_raw_mode(0o700)) {
                Ok(()) | Err(Errno::EXIST) => openat(&top, "sandboxes", flags, Mode::empty()),
                Err(errno) => Err(errno),
            },
            other => other,
        };
        let sandboxes = sandboxes.map_err(|errno| fail(&format!("can't be used: {errno}")))?;
        Ok(Self { path, sandboxes })
    }

    /// The default path: from the environment, or the conventional place.
    pub fn default_path() -> Result<PathBuf, Problem> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(path) = variable("SAGGAR_DATA_DIR") {
            return Ok(path);
        }
        if rustix::process::geteuid().is_root() {
            return Ok(PathBuf::from("/var/lib/saggar"));
        }
        variable("XDG_DATA_HOME")
            .or_else(|| variable("HOME").map(|home| home.join(".local/share")))
            .map(|base| base.join("saggar"))
            .ok_or_else(|| {
                Problem::new(
                    Code::DataDirectory,
                    "HOME is not set, so there is no default data directory",
                    "name one with --data-dir or SAGGAR_DATA_DIR",
                )
            })
    }

    /// Stores a message about this host, and returns whether it is new: unchanged facts are shown once, not at every
    /// start.
    pub fn is_news(&self, said: &str) -> bool {
        let path = self.path.join("said");
        if std::fs::read_to_string(&path).is_ok_and(|before| before == said) {
            return false;
        }
        // If it can't be stored, the message is shown again.
        let _ = std::fs::write(&path, said);
        true
    }

    /// Its path, as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The control socket of a held sandbox. It exists from the moment its supervisor listens until nothing of the
    /// sandbox is left. If a connection to it is refused, a killed supervisor left it behind.
    pub fn control_socket(&self, sandbox: &SandboxId) -> PathBuf {
        self.path.join("control").join(crate::supervise::control_name(sandbox.as_str()))
    }

    /// The directory of final reports, each as `SANDBOX.json` ([`Final`]), for a server to read and remove. Names that
    /// begin with a dot are incomplete.
    pub fn ended(&self) -> PathBuf {
        self.path.join("ended")
    }

    /// Whether this host path contains the data directory or part of it. Then no sandbox may access it: write access to
    /// a record would let a program have files removed. The exception is `doctor`'s own workspace, which contains no
    /// record.
    pub(crate) fn overlaps(&self, tree: &Path) -> bool {
        // It is open, so it exists. If its path can no longer be resolved, treat every path as unsafe.
        let Ok(path) = self.path.canonicalize() else { return true };
        let is_trial = || {
            let name = tree.strip_prefix(&path).ok().and_then(Path::to_str);
            name.is_some_and(|name| name.starts_with(TRIAL) && !name.contains('/'))
        };
        let ranges = Path::new(crate::ranges::DIRECTORY);
        if ranges.starts_with(tree) || tree.starts_with(ranges) {
            return true;
        }
        path.starts_with(tree) || (tree.starts_with(&path) && !is_trial())
    }

    /// A new workspace for `doctor`'s trials, and the lock that marks it as in use.
    pub(crate) fn new_trial(&self, id: &SandboxId) -> std::io::Result<(PathBuf, OwnedFd)> {
        // Until it is locked it looks abandoned.
        let _gate = Gate::close(self.sandboxes())?;
        let path = self.path.join(format!("{TRIAL}{id}"));
        rustix::fs::mkdir(&path, Mode::from_raw_mode(0o700))?;
        let lock = open(&path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        Ok((path, lock))
    }

    /// Removes the workspaces of `doctor` processes that were killed.
    pub(crate) fn remove_dead_trials(&self) {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return };
        let is_trial = |entry: &DirEntry| entry.file_name().to_string_lossy().starts_with(TRIAL);
        let trials: Vec<DirEntry> = entries.flatten().filter(is_trial).collect();
        if trials.is_empty() {
            return;
        }
        let Ok(_gate) = Gate::close(self.sandboxes()) else { return };
        for entry in trials {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let is_dead = open(entry.path(), flags, Mode::empty())
                .is_ok_and(|fd| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive).is_ok());
            if is_dead {
                // Tried again at the next start.
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
    }

    /// The directory of kept changes, created when it is first needed.
    pub(crate) fn changes(&self) -> std::io::Result<OwnedFd> {
        self.made("changes")
    }

    /// The directory of worktrees, created when it is first needed.
    pub(crate) fn worktrees(&self) -> std::io::Result<OwnedFd> {
        self.made("worktrees")
    }

    /// The directory of control sockets, created when it is first needed.
    pub(crate) fn control(&self) -> std::io::Result<OwnedFd> {
        self.made("control")
    }

    /// Opens a directory that may not exist.
    pub(crate) fn open_part(&self, name: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        open(self.path.join(name), flags, Mode::empty())
    }

    fn made(&self, name: &str) -> std::io::Result<OwnedFd> {
        match self.open_part(name) {
            Err(Errno::NOENT) => {}
            other => return other.map_err(Into::into),
        }
        match rustix::fs::mkdir(self.path.join(name), Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.open_part(name).map_err(Into::into)
    }

    /// Writes the final report of a sandbox for a server to find, atomically.
    pub(crate) fn write_ended(&self, last_word: &Final) -> std::io::Result<()> {
        let directory = self.made("ended")?;
        let name = format!("{}.json", last_word.sandbox_id);
        let beside = format!(".{name}");
        let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&directory, beside.as_str(), flags, Mode::from_raw_mode(0o600))?;
        std::io::Write::write_all(&mut std::fs::File::from(file), &serde_json::to_vec(last_word)?)?;
        rustix::fs::renameat(&directory, beside.as_str(), &directory, name.as_str()).map_err(Into::into)
    }

    /// The directory of kept changes, if it exists.
    pub(crate) fn kept_changes(&self) -> Option<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        open(self.path.join("changes"), flags, Mode::empty()).ok()
    }

    pub(crate) fn sandboxes(&self) -> BorrowedFd<'_> {
        self.sandboxes.as_fd()
    }
}
