//! Starts an exec: everything up to the fork, and the agent's half of what follows.
//!
//! A process that exists is not yet a running program. The status pipe reports which it becomes, and the event loop
//! watches it like everything else: a process that is stopped between fork and exec blocks only itself.

use alloc::vec::Vec;
use core::ffi::c_char;

use saggar_guest::{ExecRequest, FailStage};

use super::child::{self, Plan};
use super::pipes::{self, AgentEnds};
use super::sys::{self, Errno, Fd};
use super::{keeper, socket};

/// A process about to become a program.
pub(super) struct Spawned {
    /// The process itself, or its keeper.
    pub(super) pid: libc::pid_t,
    /// The connection to the keeper, if there is one.
    pub(super) link: Option<Fd>,
    pub(super) status: Fd,
    pub(super) ends: AgentEnds,
}

/// Why an exec did not start.
#[derive(Clone, Copy)]
pub(super) struct SpawnFailure {
    pub(super) stage: FailStage,
    pub(super) errno: Errno,
}

impl SpawnFailure {
    /// For `map_err`: this stage failed with the error.
    pub(super) fn at(stage: FailStage) -> impl Fn(Errno) -> SpawnFailure {
        move |errno| SpawnFailure { stage, errno }
    }

    /// Parses the child's report on the status pipe.
    pub(super) fn from_report(report: [u8; 5]) -> Option<SpawnFailure> {
        let [stage, errno @ ..] = report;
        Some(SpawnFailure { stage: FailStage::from_code(stage)?, errno: Errno(i32::from_le_bytes(errno)) })
    }
}

/// Creates the process, and a keeper for its tree unless the sandbox ends with it. Takes the argument and environment
/// strings out of `request`, which doesn't need them any more.
pub(super) fn spawn(request: &mut ExecRequest, joins: &[Fd]) -> Result<Spawned, SpawnFailure> {
    let argv = CStrings::new(core::mem::take(&mut request.argv));
    let env = CStrings::new(core::mem::take(&mut request.env));
    let (agent_ends, program_ends) = pipes::make(request)?;
    let (status, status_write) = status_pipe().map_err(SpawnFailure::at(FailStage::Pipes))?;
    let (link, keeper_link) = if request.one_shot { (None, None) } else { link()? };

    let plan = Plan { request, argv: &argv, env: &env, ends: &program_ends, status: &status_write, joins };
    // SAFETY: the agent has a single thread, so the child gets a consistent copy of everything, the allocator's state
    // included, and may run any code.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        match keeper_link {
            Some(keeper_link) => keeper::keep(&plan, &keeper_link),
            None => child::become_program(&plan),
        }
    }
    sys::check(pid).map_err(SpawnFailure::at(FailStage::Fork))?;
    Ok(Spawned { pid, link, status, ends: agent_ends })
}

/// The agent's end, which never blocks, and the keeper's, which does.
fn link() -> Result<(Option<Fd>, Option<Fd>), SpawnFailure> {
    let (agent, keeper) = socket::pair().map_err(SpawnFailure::at(FailStage::Pipes))?;
    agent.set_nonblocking().map_err(SpawnFailure::at(FailStage::Pipes))?;
    Ok((Some(agent), Some(keeper)))
}

fn status_pipe() -> Result<(Fd, Fd), Errno> {
    let (read, write) = sys::pipe()?;
    read.set_nonblocking()?;
    Ok((read, write))
}

/// Strings in the form that `execve` takes.
pub(super) struct CStrings {
    // INVARIANT: each ends with its only NUL, and none is changed while `pointers` points into them.
    strings: Vec<Vec<u8>>,
    pointers: Vec<*const c_char>,
}

impl CStrings {
    /// The strings must not contain a NUL, which a checked request guarantees.
    fn new(mut strings: Vec<Vec<u8>>) -> CStrings {
        for string in &mut strings {
            string.push(0);
        }
        let mut pointers: Vec<*const c_char> = strings.iter().map(|string| string.as_ptr().cast()).collect();
        pointers.push(core::ptr::null());
        CStrings { strings, pointers }
    }

    /// The strings without their NUL.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.strings.iter().map(|string| &string[..string.len() - 1])
    }

    /// The first string without its NUL; empty if there is none.
    pub(super) fn first(&self) -> &[u8] {
        self.iter().next().unwrap_or_default()
    }

    /// Pointers to the C strings, with a null pointer after the last.
    pub(super) fn pointers(&self) -> &[*const c_char] {
        &self.pointers
    }
}
