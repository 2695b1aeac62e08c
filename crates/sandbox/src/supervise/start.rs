//! Reads the start request from standard input, and drops everything else that was inherited.

use std::io;

use rustix::fs::{Mode, OFlags};
use rustix::stdio::stdin;
use saggar_domain::{Code, Problem};
use saggar_supervisor::control::{Decoder, Frame, Reply, Start, encode_json};

/// The process that started us, at the other end of our standard input.
pub(super) struct Starter(());

impl Starter {
    /// Waits for the start request. End of file means that the starter is gone. A request that can't be read, for example because its
    /// spec has a field that this version doesn't know, is a problem to report to the starter.
    pub(super) fn receive() -> io::Result<(Self, Result<Start, Problem>)> {
        let mut decoder = Decoder::new();
        let mut piece = [0u8; 4096];
        loop {
            match decoder.next_frame().map_err(io::Error::other)? {
                Some(Frame::Json(json)) => return Ok((Self(()), serde_json::from_slice(&json).map_err(unreadable))),
                Some(Frame::Output { .. } | Frame::Stdin(_)) => return Err(io::ErrorKind::InvalidData.into()),
                None => {}
            }
            match rustix::io::retry_on_intr(|| rustix::io::read(stdin(), &mut piece))? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => decoder.push(&piece[..length]),
            }
        }
    }

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

fn unreadable(error: serde_json::Error) -> Problem {
    Problem::new(Code::InvalidSpec, format!("the spec can't be read: {error}"), "give a spec of saggar.spec/v1")
}

impl Drop for Starter {
    /// The descriptor number stays in use, so that nothing else is ever mistaken for standard input.
    fn drop(&mut self) {
        let closed = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(rustix::stdio::dup2_stdin);
        debug_assert!(closed.is_ok(), "{closed:?}");
    }
}

/// Drops the session, directory, descriptors and signal settings of the parent process.
pub(super) fn detach(ignored: &[i32]) {
    // It is started as /proc/self/exe, and lists of processes would show "exe".
    let named = rustix::thread::set_name(c"saggar");
    debug_assert!(named.is_ok(), "{named:?}");
    // Fails if it already leads a group, which is just as good.
    let _ = rustix::process::setsid();
    // A failure doesn't matter: all paths here are absolute or relative to descriptors.
    let _ = rustix::process::chdir("/");
    rustix::process::umask(Mode::from_raw_mode(0o077));
    for signal in ignored {
        // SAFETY: sets a disposition and installs no handler.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
    // SAFETY: only the three standard descriptors are in use so far, and these stay open.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}
