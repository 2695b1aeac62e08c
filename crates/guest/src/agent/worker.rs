//! Workers: processes that run the agent's own code as one of the sandbox's users, each on its own stream.
//!
//! A worker is forked, keeps only its stream, becomes its user, and is then as separate from the agent as any program:
//! the agent neither waits for it nor hears from it. Its user may stop or kill it, which ends only its stream. No other
//! process may inspect it, since it has a copy of the agent's memory.

use alloc::vec::Vec;
use core::ffi::c_int;

use saggar_guest::{FileReply, FileStage, OpenRequest, OpenTarget, PortPreface};

use super::sys::{self, Errno, Fd};
use super::{files, identity, port, socket};

/// The worker's only descriptor.
const STREAM: c_int = 0;

/// Starts a worker. If that fails, or there is no room for one, the stream reports it.
pub(super) fn start(request: &OpenRequest, stream: Fd, has_room: bool) -> Option<libc::pid_t> {
    if !has_room {
        refuse(request.target, &stream, FileStage::Worker, Errno(libc::EAGAIN));
        return None;
    }
    // SAFETY: the agent has a single thread, so the child gets a consistent copy of everything and may run any code.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        work(request, stream);
    }
    if pid < 0 {
        refuse(request.target, &stream, FileStage::Worker, Errno::last());
        return None;
    }
    Some(pid)
}

/// Reports on the stream that nothing will follow, if that is possible without waiting.
fn refuse(target: OpenTarget, stream: &Fd, stage: FileStage, errno: Errno) {
    let mut bytes = Vec::new();
    match target {
        OpenTarget::Files => {
            // Such a reply is always valid.
            let _ = FileReply::Failed { errno: errno.0, stage }.encode(&mut bytes);
        }
        OpenTarget::Port(_) => bytes.extend_from_slice(&PortPreface::Refused(errno.0).encode()),
    }
    // A host that is gone or doesn't read doesn't need it.
    let _ = socket::send_now(stream, &bytes);
}

fn work(request: &OpenRequest, stream: Fd) -> ! {
    // Its number is closed with all the others, and must not be closed again.
    let raw = stream.raw();
    core::mem::forget(stream);
    match prepare(request, raw) {
        Ok(stream) => match request.target {
            OpenTarget::Files => files::serve(stream),
            OpenTarget::Port(port) => port::serve(&stream, port),
        },
        Err((stream, errno)) => refuse(request.target, &stream, FileStage::Identity, errno),
    }
    // SAFETY: _exit has no precondition and does not return.
    unsafe { libc::_exit(0) }
}

fn prepare(request: &OpenRequest, raw: c_int) -> Result<Fd, (Fd, Errno)> {
    // SAFETY: takes numbers only; the number is no `Fd`'s.
    let stream = match Fd::returned(unsafe { libc::dup2(raw, STREAM) }) {
        Ok(stream) => stream,
        Err(errno) => return Err((Fd::received(raw), errno)),
    };
    let outcome = sys::close_from(STREAM + 1).and_then(|()| stream.set_blocking()).and_then(|()| {
        let who = identity::Who::from(request);
        identity::assume(who)?;
        // A change of user clears it.
        sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0)?;
        // Files get exactly the requested permissions.
        // SAFETY: umask takes a number and cannot fail.
        unsafe { libc::umask(0) };
        Ok(())
    });
    match outcome {
        Ok(()) => Ok(stream),
        Err(errno) => Err((stream, errno)),
    }
}
