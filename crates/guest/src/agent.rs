//! The agent: PID 1 of a sandbox, which starts programs for the host and reports on them.
//!
//! It is one thread around one `poll`. It accepts the host's frames within their rules, and trusts nothing inside the
//! sandbox. Of the sandbox's files it opens only `/dev/null`, `/dev/ptmx` and `/proc`, and checks that these are
//! genuine; it also queries how full some filesystems are. Everything else is done in a new process, a program or a
//! worker, once that process has become the requested user. In doubt the agent gives up the whole sandbox by exiting:
//! the kernel then kills every process in the pid namespace.
//!
//! ```text
//!                      frames                       ┌─ stdin ──▶ program ◀─ keeper of its tree
//!   host ◀──────────▶ channel ◀── event loop ──▶ exec ◀─ stdout ─ program
//!    ▲                               │              └◀─ stderr ─ program
//!    │                           signalfd: who has ended
//!    └───── a stream each ─────▶ worker: files, port
//! ```
//!
//! INVARIANT: memory is bounded. Outputs are read only while the channel has room, stdin has a window, and the numbers
//! of execs and workers are limited.

mod channel;
mod child;
mod event_loop;
mod exec;
mod files;
mod identity;
mod input;
mod keeper;
mod names;
mod pipes;
mod port;
mod processes;
mod rule;
mod socket;
mod spawn;
mod storage;
mod sys;
mod terminal;
mod tree;
mod worker;

use core::ffi::c_int;

use event_loop::Agent;

/// Runs until there is a reason to exit.
pub(crate) fn run() -> Leave {
    match Agent::start().map(Agent::serve) {
        Ok(leave) | Err(leave) => leave,
    }
}

/// Why the agent, and with it the sandbox, ends.
#[derive(Clone, Copy)]
pub(crate) enum Leave {
    /// The one-shot exec has ended and everything about it has been reported.
    Done,
    /// The host closed the channel.
    HostGone,
    /// The host broke the protocol.
    Protocol,
    /// Something that the agent itself needs is missing.
    Broken,
}

impl Leave {
    /// The exit status, which only the host sees.
    pub(crate) fn code(self) -> c_int {
        match self {
            Leave::Done => 0,
            Leave::HostGone => 10,
            Leave::Protocol => 11,
            Leave::Broken => 12,
        }
    }
}
