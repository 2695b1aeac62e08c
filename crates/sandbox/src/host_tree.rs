//! A file or directory of the host that a spec names: examined once, by descriptor, and pinned.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use saggar_domain::{Code, HostPath, HostUser, Problem};

use crate::acting::ActingAs;
use crate::ranges;

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
    /// The user in whose name it was opened; the ids are that user's then.
    pub(crate) user: Option<HostUser>,
}

/// What the kernel reports for an id that doesn't exist here.
const NOBODYS_ID: u32 = 65_534;

impl HostTree {
    /// Opens a directory with the rights of `user`: every step of the way, and what is in it, must be open to that user. Its files are
    /// used with that user's ids, so that a sandbox can do no more with them than the user could. Root stands for itself.
    pub fn open_as(path: &HostPath, user: HostUser, code: Code, what: &str) -> Result<Self, Problem> {
        let fail = |why: &str, help: &str| Problem::new(code, format!("{what} {path} {why}"), help);
        if !Path::new(path.as_str()).is_absolute() {
            return Err(fail("is not an absolute path", "name it from the root directory"));
        }
        let own = rustix::process::geteuid();
        if !own.is_root() && own.as_raw() != user.uid {
            return Err(fail(
                "can't be opened in another user's name by this server",
                "use a server that runs as root, or as this user",
            ));
        }
        if user.uid == NOBODYS_ID || user.uid == u32::MAX || ranges::all().contains(&user.uid) {
            return Err(fail("can't be opened for this user", "use an ordinary user of the host"));
        }
        if user.is_root() {
            return Self::open(path, code, what);
        }
        let acting = ActingAs::user(user);
        // Links of /proc lead to what processes have open, past the permissions of every directory.
        let mut tree = Self::open_through(path, ResolveFlags::NO_MAGICLINKS, code, what)?;
        if tree.is_directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat2(&tree.fd, "./", flags, Mode::empty(), ResolveFlags::BENEATH)
                .map_err(|_| fail("can't be read by this user", "check its permissions"))?;
        }
        drop(acting);
        (tree.uid, tree.gid, tree.user) = (user.uid, user.gid, Some(user));
        Ok(tree)
    }

    /// While this is held, files are read with the rights of the user in whose name the tree was opened.
    pub(crate) fn acting(&self) -> Option<ActingAs> {
        self.user.map(ActingAs::user)
    }

    /// Opens `path`. Directories on the way may be links; the last component may not. It must be neither `/` nor a
    /// special file.
    pub fn open(path: &HostPath, code: Code, what: &str) -> Result<Self, Problem> {
        Self::open_through(path, ResolveFlags::empty(), code, what)
    }

    fn open_through(path: &HostPath, links: ResolveFlags, code: Code, what: &str) -> Result<Self, Problem> {
        let fail = |why: &str, help: &str| Problem::new(code, format!("{what} {path} {why}"), help);
        let given = Path::new(path.as_str());
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        // A trailing slash would follow a link.
        let trimmed = path.as_str().trim_end_matches('/');
        let given_name = if trimmed.is_empty() { "/" } else { trimmed };
        let seen = match openat2(CWD, given_name, flags, Mode::empty(), links) {
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
            user: None,
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
