//! The keeper of an exec's tree: a process between the agent and the program, to which everything that descends from the program falls when
//! its own parent has ended.
//!
//! It makes the tree recognisable (a process belongs to the exec whose keeper is above it) and its end visible (the keeper ends when it has
//! no child left). It reads nothing, parses nothing and may do nothing; all it says is a number. It reaps the program only once the agent
//! knows that it ended, so that the agent never signals a number that belongs to another by then.
//!
//! ```text
//!   agent ── keeper ─┬─ program ── its children
//!                    └─ daemon whose parent has ended
//! ```
//!
//! Whoever may signal it (a program that is root, or of the only user there is) may also kill it. The agent then kills what fell to itself.

use core::ffi::c_int;

use saggar_guest::FailStage;

use super::child::{self, Plan, STATUS};
use super::spawn::Failure;
use super::sys::{self, Errno, Fd};
use super::{identity, socket};

const PID: u8 = 1;
const ENDED: u8 = 2;

/// A message's length: what it is about and a number.
const MESSAGE_LEN: usize = 5;

/// What a keeper says.
pub(super) enum Said {
    /// Nothing yet.
    Nothing,
    /// The program's process.
    Pid(libc::pid_t),
    /// The program has ended with this wait status.
    Ended(c_int),
    /// Nothing any more.
    Gone,
}

/// The agent's side: what the keeper says next.
pub(super) fn hear(link: &Fd) -> Said {
    let mut message = [0; MESSAGE_LEN];
    match link.read(&mut message) {
        Ok(MESSAGE_LEN) => {
            let [kind, number @ ..] = message;
            let number = c_int::from_le_bytes(number);
            match kind {
                PID => Said::Pid(number),
                ENDED => {
                    // It waits for this one byte; if it is gone instead, that shows.
                    let _ = socket::send_now(link, &[0]);
                    Said::Ended(number)
                }
                _ => Said::Gone,
            }
        }
        Err(Errno(libc::EAGAIN)) => Said::Nothing,
        Ok(_) | Err(_) => Said::Gone,
    }
}

/// Turns this process into the keeper of a new program.
pub(super) fn keep(plan: &Plan<'_>, link: &Fd) -> ! {
    let program = match start(plan) {
        Ok(program) => program,
        Err(errno) => child::report(plan.status.raw(), Failure { stage: FailStage::Fork, errno }),
    };
    // What cannot be closed or dropped would be the program's loss only: its pipes would stay open.
    let link = match settle(link) {
        Ok(link) => link,
        // SAFETY: _exit has no precondition and does not return. The kernel gives the program to the agent, which kills it.
        Err(_) => unsafe { libc::_exit(1) },
    };
    say(&link, PID, program);
    loop {
        let Some((pid, status)) = next_end() else {
            // SAFETY: _exit has no precondition and does not return.
            unsafe { libc::_exit(0) }
        };
        if pid == program {
            say(&link, ENDED, status);
            // Whatever comes, if only the end of the link, the agent knows.
            let _ = link.read(&mut [0]);
        }
        // SAFETY: a null pointer asks for no status. The process has ended, so there is nothing to wait for.
        unsafe { libc::waitpid(pid, core::ptr::null_mut(), 0) };
    }
}

fn start(plan: &Plan<'_>) -> Result<libc::pid_t, Errno> {
    sys::block_signals()?;
    sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0)?;
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0)?;
    // SAFETY: as where the keeper itself was made: one thread, a consistent copy of everything.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child::become_program(plan);
    }
    sys::check(pid)?;
    Ok(pid)
}

/// Keeps the link, closes everything else and gives up what rights there are.
fn settle(link: &Fd) -> Result<Fd, Errno> {
    // SAFETY: takes numbers only; the number is that of the agent's channel, which this process never uses.
    let link = Fd::returned(unsafe { libc::dup3(link.raw(), STATUS, libc::O_CLOEXEC) })?;
    sys::close_from(STATUS + 1)?;
    identity::drop_capabilities()?;
    Ok(link)
}

/// The next process that has ended, left unreaped, and its wait status; `None` when there is no child.
fn next_end() -> Option<(libc::pid_t, c_int)> {
    loop {
        // SAFETY: all zeroes are a siginfo that says nothing, and the call fills it in.
        let info = unsafe {
            let mut info: libc::siginfo_t = core::mem::MaybeUninit::zeroed().assume_init();
            if libc::waitid(libc::P_ALL, 0, &raw mut info, libc::WEXITED | libc::WNOWAIT) < 0 {
                if Errno::last() == Errno(libc::EINTR) {
                    continue;
                }
                return None;
            }
            info
        };
        // SAFETY: waitid has succeeded, so these are the fields that are there.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        // As waitpid would say it: an exit code in the second byte, a signal in the first with a bit for a core.
        return Some(match info.si_code {
            libc::CLD_EXITED => (pid, (status & 0xff) << 8),
            libc::CLD_DUMPED => (pid, status | 0x80),
            _ => (pid, status),
        });
    }
}

fn say(link: &Fd, kind: u8, number: c_int) {
    let [a, b, c, d] = number.to_le_bytes();
    // An agent that listens no more, because the program failed to start, needs not be told.
    let _ = socket::send_now(link, &[kind, a, b, c, d]);
}
