//! The control socket: a name in the data directory that leads to a live supervisor, or to none.
//!
//! It gets its name only once it listens, so a refused connection means that its supervisor is dead.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, renameat, unlinkat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use saggar_domain::SandboxId;

use crate::data::DataDirectory;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Our name in the directory of control sockets.
pub(super) struct ControlSocket {
    directory: OwnedFd,
    name: String,
}

impl ControlSocket {
    /// Starts listening. The owner of a sandbox's record owns its socket names, and ids of sandboxes are never reused.
    pub(super) fn listen(data: &DataDirectory, sandbox: &SandboxId) -> io::Result<(Self, OwnedFd)> {
        let directory = data.control()?;
        let socket = Self { directory, name: control_name(sandbox.as_str()) };
        let unnamed = unnamed(sandbox);
        let fd =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        // A socket address has little room, and the data directory's path may be long: the path through a descriptor is
        // short.
        let address = format!("/proc/self/fd/{}/{unnamed}", socket.directory.as_raw_fd());
        let before = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = bind(&fd, &SocketAddrUnix::new(address.as_str())?);
        rustix::process::umask(before);
        bound?;
        let listening = listen(&fd, BACKLOG)
            .and_then(|()| renameat(&socket.directory, unnamed.as_str(), &socket.directory, socket.name.as_str()));
        if let Err(errno) = listening {
            // The first failure is the one to report.
            let _ = unlinkat(&socket.directory, unnamed.as_str(), AtFlags::empty());
            return Err(errno.into());
        }
        Ok((socket, fd))
    }

    pub(super) fn remove(self) {
        // If this fails, the reaper finds that nothing listens there.
        let _ = unlinkat(self.directory.as_fd(), self.name.as_str(), AtFlags::empty());
    }
}

pub(crate) fn control_name(sandbox: &str) -> String {
    format!("{sandbox}.sock")
}

/// The name until it listens. The kernel shows every local user the name that a socket was bound to, so this one
/// doesn't reveal the id; its later name is visible only in the data directory.
pub(crate) fn unnamed(sandbox: &SandboxId) -> String {
    format!(".{}.sock", sandbox.alias())
}
