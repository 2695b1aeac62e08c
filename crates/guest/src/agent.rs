//! The agent: PID 1 of a sandbox, starting programs for the host and reporting on them.
//!
//! It is one thread around one `poll`. It trusts the host's frames as far as their rules go, and nothing inside the
//! sandbox. Of the sandbox's files it opens only `/dev/null`, `/dev/ptmx` and `/proc`, and checks that they are those; it asks how
//! full some filesystems are; everything else is done in a new process, a program or a worker, once that is the user who may. Rather
//! than carry on in doubt it gives up the whole sandbox by exiting: the kernel then kills every process in the pid namespace.
//!
//! ```text
//!                      frames                       ┌─ stdin ──▶ program ◀─ keeper of its tree
//!   host ◀──────────▶ channel ◀── event loop ──▶ exec ◀─ stdout ─ program
//!    ▲                               │              └◀─ stderr ─ program
//!    │                           signalfd: who has ended
//!    └───── a stream each ─────▶ worker: files, port
//! ```
//!
//! INVARIANT: memory is bounded. Outputs are read only while the channel has room, stdin has a window, execs and workers have a number.

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

/// Runs until there is no more reason to.
pub(crate) fn run() -> Leave {
    match Agent::start().map(Agent::serve) {
        Ok(leave) | Err(leave) => leave,
    }
}

/// Why the agent, and with it the sandbox, ends.
#[derive(Clone, Copy)]
pub(crate) enum Leave {
    /// The one-shot exec is over and everything about it has been told.
    Done,
    /// The host closed the channel.
    HostGone,
    /// The host broke the protocol's rules.
    Protocol,
    /// What the agent itself needs is not there.
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
