//! The operator's terminal, for commands that need one.

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use super::read_until;

/// We hold both ends, so it outlives every `saggar` that runs on it.
pub struct Terminal {
    pub ours: OwnedFd,
    pub theirs: OwnedFd,
}

impl Terminal {
    pub fn open() -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("there are ptys");
        grantpt(&ours).and_then(|()| unlockpt(&ours)).expect("our own");
        let name = ptsname(&ours, Vec::new()).expect("our own");
        let theirs =
            rustix::fs::open(name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).expect("unlocked");
        let terminal = Self { ours, theirs };
        terminal.resize(33, 101);
        terminal
    }

    pub fn resize(&self, rows: u16, cols: u16) {
        tcsetwinsize(&self.ours, Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 })
            .expect("a terminal");
    }

    /// Starts a command with all its streams on it.
    pub fn start(&self, mut command: Command) -> Child {
        let stream = || Stdio::from(self.theirs.try_clone().expect("open"));
        command.env("TERM", "vt220").stdin(stream()).stdout(stream()).stderr(stream());
        command.spawn().expect("built")
    }

    /// Everything up to the last word of a script.
    pub fn read(&self, word: &str) -> String {
        read_until(&self.ours, word)
    }

    pub fn type_in(&self, bytes: &[u8]) {
        assert_eq!(rustix::io::write(&self.ours, bytes), Ok(bytes.len()));
    }

    pub fn modes(&self) -> Termios {
        tcgetattr(&self.theirs).expect("a terminal")
    }
}
