//! The file of `--record` and `--replay`. The egress process gets it open: it can open none itself.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::io::Errno;
use saggar_domain::{Code, NetworkMode, Problem, Spec};
use saggar_sandbox::Tape;

use crate::args::RunArguments;
use crate::events::check_out_of_reach;

/// A new recording is created with access for its owner alone: it holds what the program said and heard.
pub(crate) fn tape(arguments: &RunArguments, spec: &Spec) -> Result<Option<Tape>, Problem> {
    let (flag, path) = match (&arguments.record, &arguments.replay) {
        (Some(path), _) => ("record", path),
        (None, Some(path)) => ("replay", path),
        (None, None) => return Ok(None),
    };
    if spec.network != NetworkMode::Proxied {
        let message = format!("--{flag} needs the network mode proxied");
        return Err(Problem::new(Code::Contradiction, message, "add --net proxied, with rules"));
    }
    if flag == "replay" {
        return regular(path, OFlags::RDONLY).map(|(file, _)| Some(Tape::Replay(file)));
    }
    check_out_of_reach("recording", Some(path.as_os_str()), spec)?;
    let (file, length) = regular(path, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW)?;
    // Two runs would mix their exchanges.
    let is_free = length == 0 && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    match is_free {
        true => Ok(Some(Tape::Record(file))),
        false => Err(fail(path, &"it holds something already", "name another file, or remove this one")),
    }
}

fn regular(path: &Path, flags: OFlags) -> Result<(OwnedFd, i64), Problem> {
    const HELP: &str = "name a file, not a link or a pipe, in a directory that exists";
    let refuse = |errno: Errno| fail(path, &errno, HELP);
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = open(path, flags, Mode::from_raw_mode(0o600)).map_err(refuse)?;
    let stat = fstat(&file).map_err(refuse)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok((file, stat.st_size)),
        _ => Err(fail(path, &"it is not a regular file", HELP)),
    }
}

fn fail(path: &Path, why: &dyn std::fmt::Display, help: &str) -> Problem {
    Problem::new(Code::Stream, format!("the recording {path:?} can't be used: {why}"), help)
}
