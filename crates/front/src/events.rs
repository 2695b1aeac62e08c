//! The event stream: one JSON object per line, as events happen, in a file that no sandbox can write.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Instant, SystemTime};

use rustix::event::Timespec;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use saggar_domain::{Access, Code, EVENT_SCHEMA, Event, EventBody, FsMode, PolicyHash, Problem, Spec, Timestamp};
use saggar_sandbox::{HostTree, Ids};

use crate::streams::{copy, write_all};

pub(crate) struct EventLog {
    out: Option<OwnedFd>,
    ids: Ids,
    policy_hash: Option<PolicyHash>,
    start: Instant,
    seq: u64,
    /// The first failure to write; later events are not attempted.
    failure: Option<std::io::Error>,
}

impl EventLog {
    /// Opens the stream. `-` is stdout, which must not carry the program's output too: the program could forge
    /// events.
    pub(crate) fn open(target: Option<&OsStr>, has_json: bool, ids: Ids, start: Instant) -> Result<Self, Problem> {
        let out = match target {
            None => None,
            Some(target) if target == "-" && has_json => Some(copy(std::io::stdout().as_fd())?),
            Some(target) if target == "-" => {
                return Err(Problem::new(
                    Code::Contradiction,
                    "events on stdout would be mixed with the program's own output, which could forge them",
                    "add --json, or give a file",
                ));
            }
            Some(target) => {
                let fail = |errno: Errno| {
                    let why = if errno == Errno::NXIO { "it has no reader".to_owned() } else { errno.to_string() };
                    Problem::new(
                        Code::Stream,
                        format!("the events file {target:?} can't be opened: {why}"),
                        "name a file in a directory that exists, not a link, or a pipe that has a reader",
                    )
                };
                // Opening a pipe would wait for a reader, and no signal could interrupt that because signals are
                // already blocked.
                let flags = OFlags::WRONLY
                    | OFlags::CREATE
                    | OFlags::APPEND
                    | OFlags::CLOEXEC
                    | OFlags::NOFOLLOW
                    | OFlags::NONBLOCK;
                let fd = open(target, flags, Mode::from_raw_mode(0o600)).map_err(fail)?;
                rustix::io::ioctl_fionbio(&fd, false).map_err(fail)?;
                Some(fd)
            }
        };
        Ok(Self { out, ids, policy_hash: None, start, seq: 0, failure: None })
    }

    /// Later events carry this policy hash.
    pub(crate) fn set_policy(&mut self, hash: Option<PolicyHash>) {
        self.policy_hash = hash;
    }

    pub(crate) fn write(&mut self, body: EventBody) {
        let Some(out) = self.out.as_mut().filter(|_| self.failure.is_none()) else { return };
        let event = Event {
            schema: EVENT_SCHEMA,
            seq: self.seq,
            time: Timestamp::from(SystemTime::now()).to_string(),
            elapsed_ms: self.start.elapsed().as_millis() as u64,
            sandbox_id: &self.ids.sandbox,
            exec_id: &self.ids.exec,
            policy_hash: self.policy_hash.as_ref(),
            body,
        };
        self.seq += 1;
        let written = serde_json::to_vec(&event).map_err(std::io::Error::from).and_then(|mut line| {
            line.push(b'\n');
            write_all(out.as_fd(), &line, Some(PATIENCE))
        });
        self.failure = written.err();
    }

    /// Why the stream is incomplete; `None` if it is complete.
    pub(crate) fn failure(&self) -> Option<Problem> {
        let error = self.failure.as_ref()?;
        Some(Problem::new(
            Code::Stream,
            format!("writing events failed: {}", error.kind()),
            "the record of this exec is incomplete; check the disk that holds the events file, or the reader of the pipe",
        ))
    }
}

/// How long to wait for a reader. A stalled reader must not stop the program's clock, so after this time the stream
/// is abandoned and the result says that it is incomplete.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Refuses a file of ours, such as the one for events, that the program could write: it could forge its own record.
pub(crate) fn check_out_of_reach(what: &str, target: Option<&OsStr>, spec: &Spec) -> Result<(), Problem> {
    let Some(target) = target.filter(|target| *target != "-") else { return Ok(()) };
    let parent = Path::new(target).parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A missing directory is reported when the file is opened.
    let Ok(parent) = parent.canonicalize() else { return Ok(()) };
    let workspace = spec.workspace.iter().filter(|_| spec.fs == FsMode::WorkspaceWrite);
    let writable =
        workspace.chain(spec.mounts.iter().filter(|mount| mount.access == Access::ReadWrite).map(|mount| &mount.host));
    // The file itself may be mounted, or the directory that holds it.
    let places = [Some(parent), Path::new(target).canonicalize().ok()];
    for path in writable {
        // A mount that can't be opened is reported when the sandbox is created.
        let Ok(tree) = HostTree::open(path, Code::InvalidWorkspace, "workspace") else { continue };
        if places.iter().flatten().any(|place| tree.holds(place)) {
            return Err(Problem::new(
                Code::Contradiction,
                format!("the {what} {target:?} is in or under something that the sandbox can write"),
                "put it outside of the workspace and of writable mounts",
            ));
        }
    }
    Ok(())
}
