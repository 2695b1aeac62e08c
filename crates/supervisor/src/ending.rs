//! Endings: turns the agent's and the kernel's account of how an exec ended into the reported result.

use rustix::io::Errno;
use saggar_domain::{Code, ExecStatus, Problem};
use saggar_guest::{End, FailStage};

use crate::attend::Ending;

const NOT_FOUND: i32 = Errno::NOENT.raw_os_error();
/// From a change of owner to an id that the user namespace doesn't map.
const NO_SUCH_ID: i32 = Errno::INVAL.raw_os_error();
/// A shell's exit code for a child that SIGKILL ended.
const KILLED_BY_SHELLS_ACCOUNT: u8 = 137;

/// How an exec ended, as reported: status, exit code, signal, and a problem unless it is an ordinary end. `was_killed`
/// says whether the kernel killed one of its processes because memory ran out. A message names the program and its
/// directory as they were requested.
pub fn describe_ending(
    ending: Ending,
    was_killed: bool,
    program: &str,
    cwd: &str,
) -> (ExecStatus, Option<u8>, Option<u8>, Option<Problem>) {
    const SIGKILL: u8 = 9;
    match ending {
        Ending::Ended(End::Signal { signal: SIGKILL, .. }) if was_killed => {
            (ExecStatus::OutOfMemory, None, Some(SIGKILL), None)
        }
        Ending::Ended(End::Code(KILLED_BY_SHELLS_ACCOUNT)) if was_killed => {
            (ExecStatus::OutOfMemory, Some(KILLED_BY_SHELLS_ACCOUNT), None, None)
        }
        Ending::GuestLost if was_killed => (ExecStatus::OutOfMemory, None, Some(SIGKILL), None),
        Ending::Ended(End::Code(code)) => (ExecStatus::Exited, Some(code), None, None),
        Ending::Ended(End::Signal { signal, .. }) => (ExecStatus::Signaled, None, Some(signal), None),
        Ending::TimedOut => (ExecStatus::TimedOut, None, None, None),
        Ending::Cancelled => (ExecStatus::Cancelled, None, None, None),
        Ending::NotStarted { stage, errno } => {
            let (status, problem) = not_started(stage, errno, program, cwd);
            (status, None, None, Some(problem))
        }
        Ending::GuestLost => {
            let problem = Problem::new(
                Code::GuestLost,
                "the agent inside the sandbox died or broke the protocol; everything in it was killed",
                "run it again; if it happens again, report it",
            );
            (ExecStatus::SetupFailed, None, None, Some(problem))
        }
    }
}

/// The likely reason why there is no such program. It doesn't repeat the name, which may be long.
fn program_help(program: &str) -> &'static str {
    match program {
        _ if program.contains(' ') => {
            "its name contains a space: give the words as separate arguments (echo hello, not 'echo hello'), or let a shell read the line: sh -c 'LINE'"
        }
        _ if program.contains('/') => {
            "give a path that exists inside: a sandbox sees the files of its template (without one, only /usr, /bin and /lib* of the host), and what is mounted (`saggar run --workspace DIR` mounts one at /workspace). If the file exists inside, the interpreter in its first line (#!) doesn't"
        }
        _ => {
            "give a name on its PATH, or a path inside such as ./NAME: a sandbox sees the files of its template (without one, only /usr, /bin and /lib* of the host), and what is mounted (`saggar run --workspace DIR` mounts one at /workspace)"
        }
    }
}

fn not_started(stage: FailStage, errno: i32, program: &str, cwd: &str) -> (ExecStatus, Problem) {
    let reason = std::io::Error::from_raw_os_error(errno);
    match (stage, errno) {
        (FailStage::Program, NOT_FOUND) => (
            ExecStatus::SetupFailed,
            Problem::new(
                Code::ProgramNotFound,
                format!("no program {program:?} in the sandbox"),
                program_help(program),
            ),
        ),
        (FailStage::Program, _) => (
            ExecStatus::Refused,
            Problem::new(
                Code::ProgramNotExecutable,
                format!("the program {program:?} can't be executed: {reason}"),
                "check that it is executable, for this machine, and starts with #! if it is a script",
            ),
        ),
        (FailStage::Cwd, _) => (
            ExecStatus::Refused,
            Problem::new(
                Code::InvalidCwd,
                format!("the working directory {cwd:?} can't be entered: {reason}"),
                "give a directory that exists inside with --cwd",
            ),
        ),
        // The program's streams are given to its user, and the sandbox has no such id.
        (FailStage::Pipes | FailStage::Terminal | FailStage::Identity, NO_SUCH_ID) => (
            ExecStatus::Refused,
            Problem::new(
                Code::UnsupportedCapability,
                "the sandbox doesn't have that user: if saggar runs as an ordinary user, a sandbox has only the user it was created for",
                "create a sandbox for that user, or run saggar as root",
            ),
        ),
        (stage, _) => (
            ExecStatus::SetupFailed,
            Problem::new(
                Code::SetupFailed,
                format!("starting the program failed ({stage:?}): {reason}"),
                "`saggar doctor` shows what this host supports and what is missing",
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_that_the_sandbox_does_not_have_is_named_as_the_reason() {
        for stage in [FailStage::Pipes, FailStage::Terminal, FailStage::Identity] {
            let ending = Ending::NotStarted { stage, errno: NO_SUCH_ID };
            let (status, _, _, problem) = describe_ending(ending, false, "id", "/");
            let problem = problem.unwrap();
            assert_eq!((status, problem.code), (ExecStatus::Refused, Code::UnsupportedCapability), "{stage:?}");
            assert!(problem.message.contains("that user") && problem.help.contains("as root"), "{problem:?}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_told_with_the_likely_reason() {
        for (program, expected) in [
            ("echo hello", "contains a space"),
            ("/home/me/x.sh", "mounts one at /workspace"),
            ("./x.sh", "the interpreter in its first line"),
            ("a.txt", "a path inside such as ./NAME"),
        ] {
            let ending = Ending::NotStarted { stage: FailStage::Program, errno: NOT_FOUND };
            let (_, _, _, problem) = describe_ending(ending, false, program, "/");
            let problem = problem.unwrap();
            assert!(problem.help.contains(expected), "{problem:?}");
        }
    }
}
