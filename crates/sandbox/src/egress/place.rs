//! The names of egress services in a data directory.
//!
//! | name | what |
//! |---|---|
//! | `egress.sock` | the service that takes new sessions |
//! | `egress-N.sock` | one that was replaced and ends with its last session |
//! | `.egress-N.sock` | one that is being started |
//! | `egress.lock` | held while one is started, and while names are removed |
//! | `egress/N` | the cgroups of a service; locked until it is in them |
//!
//! A name is given only to a socket that listens, so a refused connection means that its process has ended.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, chmodat, flock, linkat, mkdirat, open, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};

use super::EGRESS_SOCKET;
use crate::ids::random;

const LOCK: &str = "egress.lock";
const CGROUPS: &str = "egress";
const CGROUP_NAME: &str = "saggar-egress-";
/// Connections that wait to be accepted: all supervisors of a host may connect at once.
const BACKLOG: i32 = 1024;
/// Longer than any list of cgroups.
const LIST_MAX: u64 = 64 * 1024;

/// A data directory, for what starts and finds egress services.
#[derive(Debug)]
pub struct EgressPlace {
    path: PathBuf,
    directory: OwnedFd,
}

/// Nobody else starts a service or removes a name while this is held.
#[derive(Debug)]
pub struct EgressLock {
    _file: OwnedFd,
}

impl EgressPlace {
    pub fn open(data: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Self { path: data.to_owned(), directory: open(data, flags, Mode::empty())? })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The address of the service that takes new sessions. Short, however long the path of the directory is.
    pub fn address(&self) -> PathBuf {
        self.address_of(EGRESS_SOCKET)
    }

    /// The addresses of services that were replaced.
    pub fn replaced(&self) -> Vec<PathBuf> {
        let is_replaced = |name: &String| name.starts_with("egress-") && name.ends_with(".sock");
        self.names(self.directory.as_fd()).into_iter().filter(is_replaced).map(|name| self.address_of(&name)).collect()
    }

    /// Waits until nobody else holds it.
    pub fn lock(&self) -> io::Result<EgressLock> {
        let file = self.lock_file()?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive))?;
        Ok(EgressLock { _file: file })
    }

    /// A socket that listens, and the name that it has until it is published.
    pub fn listen(&self, _lock: &EgressLock) -> io::Result<(OwnedFd, String)> {
        let name = format!(".egress-{}.sock", number()?);
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        bind(&socket, &SocketAddrUnix::new(self.address_of(&name))?)?;
        // The directory is private anyway.
        chmodat(&self.directory, name.as_str(), Mode::from_raw_mode(0o600), AtFlags::empty())?;
        listen(&socket, BACKLOG)?;
        Ok((socket, name))
    }

    /// From now on supervisors connect to this one. The one before, if there is one, gets another name.
    pub fn publish(&self, name: &str, _lock: &EgressLock) -> io::Result<()> {
        let other = format!("egress-{}.sock", number()?);
        match linkat(&self.directory, EGRESS_SOCKET, &self.directory, other.as_str(), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(renameat(&self.directory, name, &self.directory, EGRESS_SOCKET)?)
    }

    /// Removes what ended services left: names that nothing listens on, and empty cgroups. If one is being started, the next call does it.
    pub fn sweep(&self) {
        // Whoever starts a service makes the lock first, so without one there was none.
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let Ok(file) = openat(&self.directory, LOCK, flags, Mode::empty()) else { return };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return;
        }
        let lock = EgressLock { _file: file };
        for name in self.names(self.directory.as_fd()) {
            let is_socket = name == EGRESS_SOCKET || name.starts_with("egress-") || name.starts_with(".egress-");
            if is_socket && name.ends_with(".sock") {
                self.remove_dead(&name, &lock);
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let Ok(lists) = openat(&self.directory, CGROUPS, flags, Mode::empty()) else { return };
        for name in self.names(lists.as_fd()) {
            // Tried again next time.
            let _ = remove_cgroups(&lists, &name);
        }
    }

    /// Removes a name that nothing listens on.
    fn remove_dead(&self, name: &str, _lock: &EgressLock) {
        let tried = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            connect(&socket, &SocketAddrUnix::new(self.address_of(name))?)
        };
        if tried() == Err(Errno::CONNREFUSED) {
            // Tried again next time.
            let _ = unlinkat(&self.directory, name, AtFlags::empty());
        }
    }

    /// Names the cgroups of a service before they are made. The lock is held until the process is in them.
    pub(super) fn list_cgroups(&self, paths: impl Fn(&str) -> Vec<PathBuf>) -> io::Result<(String, File)> {
        match mkdirat(&self.directory, CGROUPS, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let number = number()?;
        let name = format!("{CGROUP_NAME}{number}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&self.directory, format!("{CGROUPS}/{number}"), flags, Mode::from_raw_mode(0o600))?;
        flock(&file, FlockOperation::LockExclusive)?;
        let mut file = File::from(file);
        for path in paths(&name) {
            writeln!(file, "{}", path.display())?;
        }
        Ok((name, file))
    }

    fn lock_file(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(openat(&self.directory, LOCK, flags, Mode::from_raw_mode(0o600))?)
    }

    fn address_of(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.directory.as_raw_fd()))
    }

    fn names(&self, directory: std::os::fd::BorrowedFd<'_>) -> Vec<String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(entries) = openat(directory, ".", flags, Mode::empty()).and_then(Dir::new) else { return Vec::new() };
        entries.filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned)).collect()
    }
}

/// Removes the cgroups in a list, if no process is in them, and then the list.
fn remove_cgroups(lists: &OwnedFd, name: &str) -> io::Result<()> {
    if name.starts_with('.') {
        return Ok(());
    }
    let file = openat(lists, name, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    let mut text = String::new();
    File::from(file).take(LIST_MAX).read_to_string(&mut text)?;
    for path in text.lines().map(Path::new) {
        let is_ours = path.file_name().and_then(|last| last.to_str()).is_some_and(|last| last.starts_with(CGROUP_NAME));
        if !is_ours || !path.starts_with("/sys/fs/cgroup") {
            return Err(io::ErrorKind::InvalidData.into());
        }
        // The kernel refuses as long as a process is in it.
        match std::fs::remove_dir(path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(unlinkat(lists, name, AtFlags::empty())?)
}

fn number() -> io::Result<String> {
    let bytes: [u8; 8] = random().map_err(io::Error::other)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
