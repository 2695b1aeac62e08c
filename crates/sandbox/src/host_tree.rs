//! A file or directory of the host that a spec names: examined once, by descriptor, and pinned.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::io::Errno;
use saggar_domain::{Code, HostPath, Problem};

#[derive(Debug)]
pub struct HostTree {
    pub(crate) path: PathBuf,
    pub(crate) fd: OwnedFd,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Otherwise it is a file.
    pub is_directory: bool,
}

impl HostTree {
    /// Opens `path`. Directories on the way may be links; the last component may not. It must be neither `/` nor a
    /// special file.
    pub fn open(path: &HostPath, code: Code, what: &str) -> Result<Self, Problem> {
        let fail = |why: &str, help: &str| Problem::new(code, format!("{what} {path} {why}"), help);
        let given = Path::new(path.as_str());
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // A trailing slash would follow a link.
        let trimmed = path.as_str().trim_end_matches('/');
        let seen = match open(if trimmed.is_empty() { "/" } else { trimmed }, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR) => return Err(fail("does not exist", "create it, or name another")),
            Err(Errno::ACCESS) => {
                return Err(fail("can't be reached by this user", "check the permissions of the directories above it"));
            }
            Err(errno) => return Err(fail(&format!("can't be opened: {errno}"), "name another")),
        };
        let stat = fstat(&seen).map_err(|errno| fail(&format!("can't be examined: {errno}"), "name another"))?;
        let is_directory = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => true,
            FileType::RegularFile => false,
            FileType::Symlink => return Err(fail("is a symbolic link", "name the directory it leads to")),
            _ => return Err(fail("is neither a file nor a directory", "name a file or a directory")),
        };
        let resolved = given
            .canonicalize()
            .map_err(|error| fail(&format!("can't be resolved: {}", error.kind()), "name another"))?;
        if resolved.to_str().is_none() {
            return Err(fail("has a path that is not UTF-8", "rename it, or mount a directory above it"));
        }
        if resolved == Path::new("/") {
            return Err(fail("is the host's root directory", "name the directory the program should work on"));
        }
        // From here on the resolved path must lead to the file just examined, without any link.
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let fd = openat2(CWD, &resolved, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
            .map_err(|_| fail("changed while it was being examined", "try again when nothing renames it"))?;
        let again = fstat(&fd).map_err(|errno| fail(&format!("can't be examined: {errno}"), "name another"))?;
        if (again.st_dev, again.st_ino) != (stat.st_dev, stat.st_ino) {
            return Err(fail("changed while it was being examined", "try again when nothing renames it"));
        }
        Ok(Self {
            path: resolved,
            fd,
            device: stat.st_dev,
            inode: stat.st_ino,
            uid: stat.st_uid,
            gid: stat.st_gid,
            is_directory,
        })
    }

    /// The same tree, through a duplicated descriptor.
    pub(crate) fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self { path: self.path.clone(), fd: self.fd.try_clone()?, ..*self })
    }

    /// Whether another host path is this tree or lies in it.
    pub fn holds(&self, path: &Path) -> bool {
        path.starts_with(&self.path)
    }
}
