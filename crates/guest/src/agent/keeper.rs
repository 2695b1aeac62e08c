//! The keeper of an exec's tree: a process between the agent and the program, which inherits every descendant of the
//! program whose own parent has ended.
//!
//! It identifies the tree (a process belongs to the exec whose keeper is its ancestor) and makes its end visible (the
//! keeper exits once it has no child left). It reads nothing, parses nothing and has no privileges; all it sends is
//! numbers. It reaps the program only once the agent knows that it ended, so that the agent never signals a pid that
//! was reused.
//!
//! ```text
//!   agent ── keeper ─┬─ program ── its children
//!                    └─ daemon whose parent has ended
//! ```
//!
//! A process that may signal the keeper (a program that is root, or of the only user) may also kill it. The agent then
//! kills the processes that it inherits.

use core::ffi::c_int;

use saggar_guest::FailStage;

use super::child::{self, Plan, STATUS};
use super::spawn::SpawnFailure;
use super::sys::{self, Errno, Fd};
use super::{identity, socket};

const PID: u8 = 1;
const ENDED: u8 = 2;

/// Length of a message: its kind, a number, and the usage.
const MESSAGE_LEN: usize = 21;

/// Usage of processes.
#[derive(Clone, Copy, Default)]
pub(super) struct Used {
    pub(super) cpu_usec: u64,
    /// Peak memory of any one of them, in bytes.
    pub(super) memory_peak: u64,
}

pub(super) enum Said {
    Nothing,
    /// The program's process.
    Pid(libc::pid_t),
    /// The program has ended with this wait status. The usage covers it and those of its descendants that ended before.
    Ended(c_int, Used),
    /// No more messages.
    Gone,
}

/// The agent's side: the keeper's next message.
pub(super) fn hear(link: &Fd) -> Said {
    let mut message = [0; MESSAGE_LEN];
    match link.read(&mut message) {
        Ok(MESSAGE_LEN) => {
            let [kind, a, b, c, d, used @ ..] = message;
            let number = c_int::from_le_bytes([a, b, c, d]);
            match kind {
                PID => Said::Pid(number),
                ENDED => {
                    // The keeper waits for this byte; if it is gone instead, that shows.
                    let _ = socket::send_now(link, &[0]);
                    Said::Ended(number, Used::from_bytes(used))
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
        Err(errno) => child::report(plan.status.raw(), SpawnFailure { stage: FailStage::Fork, errno }),
    };
    // A failure to close or drop would only affect the program: its pipes would stay open.
    let link = match settle(link) {
        Ok(link) => link,
        // SAFETY: _exit has no precondition and does not return. The agent inherits the program, and kills it.
        Err(_) => unsafe { libc::_exit(1) },
    };
    say(&link, PID, program, Used::default());
    loop {
        let Some((pid, status, used)) = next_end() else {
            // SAFETY: _exit has no precondition and does not return.
            unsafe { libc::_exit(0) }
        };
        if pid == program {
            say(&link, ENDED, status, used.with(reaped()));
            // Whatever arrives, even if only the end of the link, the agent knows.
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

/// Keeps the link, closes everything else and drops all privileges.
fn settle(link: &Fd) -> Result<Fd, Errno> {
    // SAFETY: takes numbers only; the number is that of the agent's channel, which this process never uses.
    let link = Fd::returned(unsafe { libc::dup3(link.raw(), STATUS, libc::O_CLOEXEC) })?;
    sys::close_from(STATUS + 1)?;
    identity::drop_capabilities()?;
    Ok(link)
}

/// The next ended process, not reaped, with its wait status and usage; `None` if there is no child.
fn next_end() -> Option<(libc::pid_t, c_int, Used)> {
    loop {
        // SAFETY: all zeroes are a valid siginfo and rusage, which the call fills in. The C library's function doesn't
        // return the latter; the kernel's struct is the beginning of the C library's.
        let (info, used) = unsafe {
            let mut info: libc::siginfo_t = core::mem::MaybeUninit::zeroed().assume_init();
            let mut used: libc::rusage = core::mem::MaybeUninit::zeroed().assume_init();
            let flags = libc::WEXITED | libc::WNOWAIT;
            if libc::syscall(libc::SYS_waitid, libc::P_ALL, 0, &raw mut info, flags, &raw mut used) < 0 {
                if Errno::last() == Errno(libc::EINTR) {
                    continue;
                }
                return None;
            }
            (info, Used::from_kernel(&used))
        };
        // SAFETY: waitid has succeeded, so these fields are valid.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        // In waitpid's format: an exit code in the second byte, a signal in the first with a bit for a core.
        return Some(match info.si_code {
            libc::CLD_EXITED => (pid, (status & 0xff) << 8, used),
            libc::CLD_DUMPED => (pid, status | 0x80, used),
            _ => (pid, status, used),
        });
    }
}

/// Usage of the processes that this one has reaped: orphans that it inherited.
fn reaped() -> Used {
    // SAFETY: all zeroes are a valid rusage, which the call fills in; it can't fail.
    let used = unsafe {
        let mut used: libc::rusage = core::mem::MaybeUninit::zeroed().assume_init();
        libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut used);
        used
    };
    Used::from_kernel(&used)
}

impl Used {
    fn from_kernel(used: &libc::rusage) -> Used {
        // None of these is ever negative.
        let usec =
            |time: libc::timeval| (time.tv_sec as u64).saturating_mul(1_000_000).saturating_add(time.tv_usec as u64);
        Used {
            cpu_usec: usec(used.ru_utime).saturating_add(usec(used.ru_stime)),
            memory_peak: (used.ru_maxrss as u64).saturating_mul(1024),
        }
    }

    fn with(self, other: Used) -> Used {
        Used {
            cpu_usec: self.cpu_usec.saturating_add(other.cpu_usec),
            memory_peak: self.memory_peak.max(other.memory_peak),
        }
    }

    fn from_bytes(bytes: [u8; 16]) -> Used {
        let [a, b, c, d, e, f, g, h, peak @ ..] = bytes;
        Used { cpu_usec: u64::from_le_bytes([a, b, c, d, e, f, g, h]), memory_peak: u64::from_le_bytes(peak) }
    }
}

fn say(link: &Fd, kind: u8, number: c_int, used: Used) {
    let mut message = [kind; MESSAGE_LEN];
    message[1..5].copy_from_slice(&number.to_le_bytes());
    message[5..13].copy_from_slice(&used.cpu_usec.to_le_bytes());
    message[13..].copy_from_slice(&used.memory_peak.to_le_bytes());
    // An agent that no longer listens, because the program failed to start, need not be told.
    let _ = socket::send_now(link, &message);
}
