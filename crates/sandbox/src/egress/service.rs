//! The egress process that serves all sandboxes of a server. The server starts it; a supervisor only connects.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use saggar_domain::{Code, Problem};
use saggar_supervisor::egress::{Session, Source, backoff};

use super::EGRESS_SOCKET;
use crate::data::DataDirectory;

#[derive(Debug)]
pub(crate) struct ServiceSocket {
    /// The data directory. A socket's address has little room, so it is reached through this.
    directory: OwnedFd,
}

impl ServiceSocket {
    pub(crate) fn in_directory(data: &DataDirectory) -> Result<Self, Problem> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(data.path(), flags, Mode::empty()).map_err(unreached)?;
        Ok(Self { directory })
    }
}

impl Source for ServiceSocket {
    fn connect(&mut self) -> Result<Session, Problem> {
        let address = format!("/proc/self/fd/{}/{EGRESS_SOCKET}", self.directory.as_raw_fd());
        Session::connect(Path::new(&address)).map_err(unreached)
    }

    /// As long as the sandbox lives: the server starts another one, or the next server does.
    fn delay(&mut self, failed: u32) -> Option<Duration> {
        Some(backoff(failed))
    }
}

fn unreached(errno: Errno) -> Problem {
    Problem::new(
        Code::SetupFailed,
        format!("the egress process of this server can't be reached: {errno}"),
        "try again; the server's log says why it could not be started",
    )
}
