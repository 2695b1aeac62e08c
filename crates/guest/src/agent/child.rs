//! From fork to the program: what the new process does to itself.
//!
//! The order matters. Descriptors are closed before anything could be reached through them. Limits that don't depend on
//! the user are set before the user changes. The working directory is entered as that user, so that its permissions
//! apply. A failure is written to the status pipe as a stage and an errno, and the process exits; success is the pipe
//! closing unwritten when the program is executed. Nothing here allocates. (The agent has one thread, so allocating
//! would be safe, but there is no need.)

use core::ffi::{CStr, c_char, c_int};

use saggar_guest::{ExecRequest, FailStage, PATH_MAX};

use super::pipes::ProgramEnds;
use super::spawn::{CStrings, SpawnFailure};
use super::sys::{self, Errno};
use super::{identity, rule, terminal};

/// The number of the status pipe, just above the standard descriptors.
pub(super) const STATUS: c_int = 3;

/// Never seen: the failure itself is reported through the status pipe.
const EXIT_FAILED: c_int = 127;

/// Only the owner may write to new files, unless the program changes this.
const UMASK: libc::mode_t = 0o022;

/// Everything the new process needs, prepared before the fork.
pub(super) struct Plan<'a> {
    pub(super) request: &'a ExecRequest,
    pub(super) argv: &'a CStrings,
    pub(super) env: &'a CStrings,
    pub(super) ends: &'a ProgramEnds,
    pub(super) status: &'a sys::Fd,
    /// The `cgroup.procs` or `tasks` files of the cgroups to enter.
    pub(super) joins: &'a [sys::Fd],
}

/// Turns this process into the program, or reports the failure and exits.
pub(super) fn become_program(plan: &Plan<'_>) -> ! {
    let mut status = plan.status.raw();
    let failure = prepare(plan, &mut status).err().unwrap_or_else(|| execute(plan));
    report(status, failure)
}

/// Reports to the agent why the program did not start, and exits.
pub(super) fn report(status: c_int, failure: SpawnFailure) -> ! {
    let [a, b, c, d] = failure.errno.0.to_le_bytes();
    let report = [failure.stage.code(), a, b, c, d];
    // SAFETY: the pointer and the length are those of one array. If the agent is gone, the report can't be delivered.
    // _exit does not return.
    unsafe {
        libc::write(status, report.as_ptr().cast(), report.len());
        libc::_exit(EXIT_FAILED)
    }
}

fn prepare(plan: &Plan<'_>, status: &mut c_int) -> Result<(), SpawnFailure> {
    let request = plan.request;
    // First, so that everything done for the program is counted as the program's.
    enter_cgroups(plan.joins).map_err(SpawnFailure::at(FailStage::Cgroup))?;
    start_session().map_err(SpawnFailure::at(FailStage::Session))?;
    place_descriptors(plan, status).map_err(SpawnFailure::at(FailStage::Descriptors))?;
    if request.tty.is_some() {
        terminal::take_control().map_err(SpawnFailure::at(FailStage::Terminal))?;
    }
    limit(libc::RLIMIT_NOFILE as _, request.nofile).map_err(SpawnFailure::at(FailStage::Limits))?;
    identity::assume(request.into()).map_err(SpawnFailure::at(FailStage::Identity))?;
    // SAFETY: umask takes a number and cannot fail.
    unsafe { libc::umask(UMASK) };
    enter(&request.cwd).map_err(SpawnFailure::at(FailStage::Cwd))?;
    // Last, because it counts the processes of the user that this process now belongs to.
    limit(libc::RLIMIT_NPROC as _, request.nproc).map_err(SpawnFailure::at(FailStage::Limits))
}

/// A zero written to such a list stands for the writing process.
fn enter_cgroups(joins: &[sys::Fd]) -> Result<(), Errno> {
    joins.iter().try_for_each(|processes| processes.write(b"0").map(|_| ()))
}

/// Default signals, none blocked, and a new session: the process group that `Signal` goes to.
fn start_session() -> Result<(), Errno> {
    // The only signal that the agent ignores. All others are at their default since it started, and none has a handler
    // here.
    sys::set_disposition(libc::SIGPIPE, libc::SIG_DFL)?;
    let mut none = core::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set before sigprocmask reads it.
    unsafe {
        libc::sigemptyset(none.as_mut_ptr());
        sys::check(libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), core::ptr::null_mut()))?;
        sys::check(libc::setsid())
    }
}

/// Puts the program's ends at 0, 1, 2 and the status pipe at 3, over the control channel, and closes the rest.
fn place_descriptors(plan: &Plan<'_>, status: &mut c_int) -> Result<(), Errno> {
    // All sources are above 3, where the agent's own descriptors begin, so none is overwritten before it is copied.
    for (source, target) in [(&plan.ends.stdin, 0), (&plan.ends.stdout, 1), (&plan.ends.stderr, 2)] {
        // SAFETY: takes numbers only; 0, 1 and 2 belong to no `Fd`.
        sys::check(unsafe { libc::dup2(source.raw(), target) })?;
    }
    // SAFETY: takes numbers only; 3 is the agent's channel, which this process never uses.
    sys::check(unsafe { libc::dup3(*status, STATUS, libc::O_CLOEXEC) })?;
    *status = STATUS;
    if rule::is_on("start/descriptors") { sys::close_from(STATUS + 1) } else { Ok(()) }
}

/// Sets both the soft and the hard limit, if a value is given.
fn limit(resource: c_int, value: Option<u64>) -> Result<(), Errno> {
    let Some(value) = value else { return Ok(()) };
    let limits = libc::rlimit { rlim_cur: value, rlim_max: value };
    // SAFETY: the call reads one rlimit through the pointer.
    sys::check(unsafe { libc::setrlimit(resource as _, &raw const limits) })
}

fn enter(directory: &[u8]) -> Result<(), Errno> {
    let mut buffer = [0; PATH_MAX];
    let directory = join(&mut buffer, &[directory]).ok_or(Errno(libc::ENAMETOOLONG))?;
    // SAFETY: the path is a C string.
    sys::check(unsafe { libc::chdir(directory.as_ptr()) })
}

/// Executes the program; returns only on failure.
fn execute(plan: &Plan<'_>) -> SpawnFailure {
    let name = plan.argv.first();
    let errno = if name.contains(&b'/') { execute_path(plan, plan.argv.pointers()[0]) } else { search(plan, name) };
    SpawnFailure { stage: FailStage::Program, errno }
}

/// Tries each directory of the request's `PATH`, as a shell would. Empty entries are skipped: the working directory is
/// searched only if `PATH` names it.
fn search(plan: &Plan<'_>, name: &[u8]) -> Errno {
    let Some(path) = plan.env.iter().find_map(|entry| entry.strip_prefix(b"PATH=")) else { return Errno(libc::ENOENT) };
    let mut reason = Errno(libc::ENOENT);
    let mut buffer = [0; PATH_MAX];
    for directory in path.split(|byte| *byte == b':').filter(|directory| !directory.is_empty()) {
        let Some(candidate) = join(&mut buffer, &[directory, b"/", name]) else { continue };
        match execute_path(plan, candidate.as_ptr()) {
            Errno(libc::ENOENT | libc::ENOTDIR) => {}
            // It exists here but may not be executed; a later one may.
            Errno(libc::EACCES) => reason = Errno(libc::EACCES),
            other => return other,
        }
    }
    reason
}

fn execute_path(plan: &Plan<'_>, path: *const c_char) -> Errno {
    // SAFETY: `path` is a C string, and both lists are arrays of C strings that end with a null pointer.
    unsafe { libc::execve(path, plan.argv.pointers().as_ptr(), plan.env.pointers().as_ptr()) };
    Errno::last()
}

/// Joins the parts as a C string, if they fit.
fn join<'a>(buffer: &'a mut [u8; PATH_MAX], parts: &[&[u8]]) -> Option<&'a CStr> {
    let mut length = 0;
    for part in parts {
        buffer.get_mut(length..length + part.len())?.copy_from_slice(part);
        length += part.len();
    }
    *buffer.get_mut(length)? = 0;
    CStr::from_bytes_with_nul(buffer.get(..=length)?).ok()
}
