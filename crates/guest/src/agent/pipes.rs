//! Stdin, stdout and stderr of a program to be started: pipes, or a terminal for all three.
//!
//! Each has two ends. The program's ends are ordinary blocking files; the agent's never block. They belong to the
//! program's user, who otherwise could not reopen `/dev/stdout`.

use saggar_guest::{ExecRequest, FailStage};

use super::spawn::SpawnFailure;
use super::sys::{self, Fd};
use super::terminal;

pub(super) struct AgentEnds {
    /// For writing stdin, if the host sends any.
    pub(super) stdin: Option<Fd>,
    pub(super) stdout: Fd,
    /// Absent with a terminal.
    pub(super) stderr: Option<Fd>,
    /// The terminal itself, if stdin and stdout are one.
    pub(super) terminal: Option<Fd>,
}

/// The program's descriptors 0, 1 and 2.
pub(super) struct ProgramEnds {
    pub(super) stdin: Fd,
    pub(super) stdout: Fd,
    pub(super) stderr: Fd,
}

pub(super) fn make(request: &ExecRequest) -> Result<(AgentEnds, ProgramEnds), SpawnFailure> {
    match request.tty {
        Some(size) => terminal::make(size, request).map_err(SpawnFailure::at(FailStage::Terminal)),
        None => make_pipes(request).map_err(SpawnFailure::at(FailStage::Pipes)),
    }
}

fn make_pipes(request: &ExecRequest) -> Result<(AgentEnds, ProgramEnds), sys::Errno> {
    let (program_stdin, agent_stdin) = if request.stdin {
        let (program, agent) = sys::pipe()?;
        agent.set_nonblocking()?;
        hand_over(&program, request)?;
        (program, Some(agent))
    } else {
        (null()?, None)
    };
    let (agent_stdout, program_stdout) = output_pipe(request)?;
    let (agent_stderr, program_stderr) = output_pipe(request)?;
    Ok((
        AgentEnds { stdin: agent_stdin, stdout: agent_stdout, stderr: Some(agent_stderr), terminal: None },
        ProgramEnds { stdin: program_stdin, stdout: program_stdout, stderr: program_stderr },
    ))
}

/// Opens `/dev/null`, and fails if it is anything else: a sandbox that replaced it must not get a file opened with the
/// agent's privileges, nor an agent that waits for the other end of a fifo.
fn null() -> Result<Fd, sys::Errno> {
    let null = sys::open(c"/dev/null", libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK)?;
    if null.device()? == Some(libc::makedev(1, 3)) { Ok(null) } else { Err(sys::Errno(libc::ENXIO)) }
}

fn output_pipe(request: &ExecRequest) -> Result<(Fd, Fd), sys::Errno> {
    let (agent, program) = sys::pipe()?;
    agent.set_nonblocking()?;
    hand_over(&program, request)?;
    Ok((agent, program))
}

/// Makes the program's user the owner. If that is the agent's own user there is nothing to do, and no privilege to do
/// it.
fn hand_over(program: &Fd, request: &ExecRequest) -> Result<(), sys::Errno> {
    // SAFETY: these have no precondition and cannot fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    if (uid, gid) == (request.uid, request.gid) { Ok(()) } else { program.give_to(request.uid, Some(request.gid)) }
}
