//! Pseudo-terminals: creation, resizing, and the end of input.
//!
//! The program's side is opened through the agent's side (`TIOCGPTPEER`), never by its path, so nothing that a sandbox
//! does to its `/dev/pts` can substitute another file.

use core::ffi::c_int;
use core::mem::MaybeUninit;

use saggar_guest::{ExecRequest, TerminalSize};

use super::pipes::{AgentEnds, ProgramEnds};
use super::sys::{self, Errno, Fd};

pub(super) fn make(size: TerminalSize, request: &ExecRequest) -> Result<(AgentEnds, ProgramEnds), Errno> {
    let master = sys::open(c"/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY)?;
    master.set_nonblocking()?;
    let unlock: c_int = 0;
    // SAFETY: the kernel reads one int through the pointer.
    sys::check(unsafe { libc::ioctl(master.raw(), libc::TIOCSPTLCK as _, &raw const unlock) })?;
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // SAFETY: this request takes a number.
    let slave = Fd::returned(unsafe { libc::ioctl(master.raw(), libc::TIOCGPTPEER as _, flags) })?;
    resize(&master, size)?;

    // SAFETY: geteuid has no precondition and cannot fail.
    if unsafe { libc::geteuid() } != request.uid {
        // The group stays as the devpts filesystem sets it.
        slave.give_to(request.uid, None)?;
    }

    let stdin = if request.stdin { Some(master.duplicate()?) } else { None };
    let agent = AgentEnds { stdin, stdout: master.duplicate()?, stderr: None, terminal: Some(master) };
    let program = ProgramEnds { stdin: slave.duplicate()?, stdout: slave.duplicate()?, stderr: slave };
    Ok((agent, program))
}

/// Sets the size; the kernel notifies the foreground process group.
pub(super) fn resize(terminal: &Fd, size: TerminalSize) -> Result<(), Errno> {
    let size = libc::winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the kernel reads one winsize through the pointer.
    sys::check(unsafe { libc::ioctl(terminal.raw(), libc::TIOCSWINSZ as _, &raw const size) })
}

/// The character that signals the end of input at the start of a line; `None` while the program has the terminal in a
/// mode without one.
pub(super) fn end_of_input(terminal: &Fd) -> Option<u8> {
    let mut settings = MaybeUninit::<libc::termios>::uninit();
    // SAFETY: tcgetattr fills in the whole struct when it succeeds, and only then is it read.
    let settings = unsafe {
        if libc::tcgetattr(terminal.raw(), settings.as_mut_ptr()) < 0 {
            return None;
        }
        settings.assume_init()
    };
    let is_canonical = settings.c_lflag & libc::ICANON != 0;
    settings.c_cc.get(libc::VEOF).copied().filter(|_| is_canonical)
}

/// Makes the terminal at descriptor 0 the controlling terminal of this process's new session.
pub(super) fn take_control() -> Result<(), Errno> {
    // SAFETY: this request takes a number; zero means not to steal it from another session.
    sys::check(unsafe { libc::ioctl(0, libc::TIOCSCTTY as _, 0) })
}
