//! The program's streams: where its stdin comes from and where its output goes.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;
use saggar_domain::{Code, Problem, Spec};
use saggar_sandbox::HostTree;
use saggar_supervisor::{EscapeFilter, Sink, Streams};

use crate::joint::{Joint, Stdin, Terminal};

/// Opens the streams for a command line.
pub(crate) fn open(is_json: bool, joint: &Joint, spec: &Spec) -> Result<Streams, Problem> {
    let limit = spec.limits.output;
    let sink = |fd: BorrowedFd<'_>, is_terminal: bool| -> Result<Sink, Problem> {
        if is_json {
            return Ok(Sink::keep(limit.value.bytes()));
        }
        let filter = filter(joint.terminal).filter(|_| is_terminal);
        let asked = limit.is_asked.then(|| limit.value.bytes());
        Ok(Sink::forward(copy(fd)?, asked, filter))
    };
    let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
    Ok(Streams {
        stdin: stdin(&joint.stdin, spec)?,
        stdout: sink(stdout.as_fd(), stdout.is_terminal())?,
        stderr: sink(stderr.as_fd(), stderr.is_terminal())?,
        terminal: if joint.terminal.is_some() && std::io::stdin().is_terminal() {
            Some(copy(std::io::stdin().as_fd())?)
        } else {
            None
        },
    })
}

/// The filter for output to our terminal; `None` if everything passes.
pub fn filter(terminal: Option<Terminal>) -> Option<EscapeFilter> {
    match terminal {
        None => Some(EscapeFilter::default()),
        Some(Terminal::Screen) => Some(EscapeFilter::for_screen()),
        Some(Terminal::Whole) => None,
    }
}

fn stdin(stdin: &Stdin, spec: &Spec) -> Result<Option<OwnedFd>, Problem> {
    match stdin {
        Stdin::Empty => Ok(None),
        Stdin::Ours => Ok(Some(own_pipe().map_or_else(|| copy(std::io::stdin().as_fd()), Ok)?)),
        Stdin::File(target) => file(target, spec).map(Some),
    }
}

/// Reopens a pipe on stdin, so that it can be non-blocking for us alone. Another reader of the same pipe may take the
/// data first, and then a blocking read would delay deadlines and signals.
fn own_pipe() -> Option<OwnedFd> {
    let stdin = std::io::stdin();
    let is_pipe = fstat(&stdin).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo);
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    is_pipe.then(|| rustix::fs::open("/proc/self/fd/0", flags, Mode::empty()).ok()).flatten()
}

/// A stdin file must be a regular file in the working directory, the workspace or a mount: a place that the user has
/// already named. Anything else can be piped in by a shell that may read it.
fn file(target: &OsStr, spec: &Spec) -> Result<OwnedFd, Problem> {
    let fail = |why: &str| {
        Problem::new(
            Code::InvalidStdin,
            format!("stdin file {target:?} {why}"),
            "name a regular file in the working directory, the workspace or a mount, or pipe it in: < FILE",
        )
    };
    let resolved =
        Path::new(target).canonicalize().map_err(|error| fail(&format!("can't be opened: {}", error.kind())))?;
    let here = std::env::current_dir().and_then(|path| path.canonicalize()).ok();
    let named = spec.workspace.iter().chain(spec.mounts.iter().map(|mount| &mount.host));
    let is_allowed = here.is_some_and(|here| resolved.starts_with(here))
        || named
            .into_iter()
            .any(|path| HostTree::open(path, Code::InvalidStdin, "directory").is_ok_and(|tree| tree.holds(&resolved)));
    if !is_allowed {
        return Err(fail("is outside of the allowed directories"));
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let fd = openat2(CWD, &resolved, flags, Mode::empty(), resolve)
        .map_err(|errno| fail(&format!("can't be opened: {errno}")))?;
    let stat = fstat(&fd).map_err(|errno| fail(&format!("can't be examined: {errno}")))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(fd),
        _ => Err(fail("is not a regular file")),
    }
}

/// Our own descriptor for one of the three streams. A terminal is reopened, so that it can be non-blocking for us
/// alone: it polls writable as soon as it has room for one byte, and a longer blocking write would delay deadlines
/// and signals.
pub fn copy(fd: BorrowedFd<'_>) -> Result<OwnedFd, Problem> {
    if rustix::termios::isatty(fd) {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let own = format!("/proc/self/fd/{}", fd.as_raw_fd());
        if let Ok(terminal) = rustix::fs::open(own, flags, Mode::empty()) {
            return Ok(terminal);
        }
    }
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|errno| {
        Problem::new(
            Code::Stream,
            format!("one of stdin, stdout and stderr can't be used: {errno}"),
            "start saggar with all three open",
        )
    })
}

/// Writes everything. Each wait for the reader lasts at most `patience`; without one, it waits forever.
pub fn write_all(out: BorrowedFd<'_>, bytes: &[u8], patience: Option<Timespec>) -> std::io::Result<()> {
    // A pipe that polls writable accepts this much without blocking.
    const PIECE: usize = 4096;
    let mut rest = bytes;
    while !rest.is_empty() {
        match poll(&mut [PollFd::from_borrowed_fd(out, PollFlags::OUT)], patience.as_ref()) {
            Ok(0) => return Err(std::io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match rustix::io::write(out, &rest[..rest.len().min(PIECE)]) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
