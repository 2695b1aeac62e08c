//! The control socket: a name in the data directory that leads to a live supervisor, or to none.
//!
//! It gets its name only when it listens, so whoever is refused at that name has found a dead one's.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, renameat, unlinkat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use saggar_domain::SandboxId;

use crate::data::DataDirectory;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A name of ours in the directory of control sockets.
pub(super) struct ControlSocket {
    directory: OwnedFd,
    name: String,
}

impl ControlSocket {
    /// Listens. Who holds the sandbox's record owns its names, and no sandbox has an id that another had.
    pub(super) fn listen(data: &DataDirectory, sandbox: &SandboxId) -> io::Result<(Self, OwnedFd)> {
        let directory = data.control()?;
        let socket = Self { directory, name: control_name(sandbox.as_str()) };
        let unnamed = unnamed(sandbox);
        let fd =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
        // An address has little room, and a data directory may be anywhere: the way through a descriptor is short.
        let address = format!("/proc/self/fd/{}/{unnamed}", socket.directory.as_raw_fd());
        let before = rustix::process::umask(Mode::from_raw_mode(0o177));
        let bound = bind(&fd, &SocketAddrUnix::new(address.as_str())?);
        rustix::process::umask(before);
        bound?;
        let listening = listen(&fd, BACKLOG)
            .and_then(|()| renameat(&socket.directory, unnamed.as_str(), &socket.directory, socket.name.as_str()));
        if let Err(errno) = listening {
            // The first failure is the one to tell.
            let _ = unlinkat(&socket.directory, unnamed.as_str(), AtFlags::empty());
            return Err(errno.into());
        }
        Ok((socket, fd))
    }

    /// Takes the name away.
    pub(super) fn remove(self) {
        // If this fails the reaper finds that nobody listens there.
        let _ = unlinkat(self.directory.as_fd(), self.name.as_str(), AtFlags::empty());
    }
}

/// What the control socket of a sandbox is called.
pub(crate) fn control_name(sandbox: &str) -> String {
    format!("{sandbox}.sock")
}

/// What it is called until it listens. The kernel shows every local user the name that a socket was bound to, so this one doesn't tell
/// the id; the name it gets afterwards is seen in the data directory only.
pub(crate) fn unnamed(sandbox: &SandboxId) -> String {
    format!(".{}.sock", sandbox.alias())
}
