//! Being started: what is read from standard input, and leaving behind everything else that was inherited.

use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::stdio::stdin;
use saggar_supervisor::control::{Decoder, Frame, Reply, Start, encode_json};

/// Whoever started us, at the other end of our standard input.
pub(super) struct Starter(());

impl Starter {
    /// Waits to be told what to hold. An end of the stream instead means that nobody wants anything any more.
    pub(super) fn receive() -> io::Result<(Self, Start)> {
        let mut decoder = Decoder::new();
        let mut piece = [0u8; 4096];
        loop {
            match decoder.next_frame().map_err(io::Error::other)? {
                Some(Frame::Json(json)) => return Ok((Self(()), serde_json::from_slice(&json)?)),
                Some(Frame::Output { .. } | Frame::Stdin(_)) => return Err(io::ErrorKind::InvalidData.into()),
                None => {}
            }
            match rustix::io::retry_on_intr(|| rustix::io::read(stdin(), &mut piece))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => decoder.push(&piece[..length]),
            }
        }
    }

    /// Says how it went.
    pub(super) fn tell(&mut self, reply: &Reply) -> io::Result<()> {
        let mut bytes = Vec::new();
        encode_json(&mut bytes, reply).map_err(io::Error::other)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let sent = rustix::io::retry_on_intr(|| rustix::io::write(stdin(), rest))?;
            rest = &rest[sent..];
        }
        Ok(())
    }
}

impl Drop for Starter {
    /// The number stays taken, so that nothing else is ever mistaken for a standard input.
    fn drop(&mut self) {
        let closed = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(rustix::stdio::dup2_stdin);
        debug_assert!(closed.is_ok(), "{closed:?}");
    }
}

/// Leaves the session, the directory, the descriptors and the signals of whoever started us.
pub(super) fn detach(ignored: &[i32]) {
    // A leader of its own group already is as good.
    let _ = rustix::process::setsid();
    // Where it runs doesn't matter to anything here: paths are absolute or relative to descriptors.
    let _ = rustix::process::chdir("/");
    rustix::process::umask(Mode::from_raw_mode(0o077));
    for signal in ignored {
        // SAFETY: sets a disposition and installs no handler.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
    // SAFETY: nothing of ours is open yet but the three standard descriptors, which stay.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}
