//! The event stream: one JSON object a line, as things happen, in a file no sandbox can write.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::event::Timespec;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use saggar_domain::{Access, Code, EVENT_SCHEMA, Event, EventBody, FsMode, PolicyHash, Problem, Spec};
use saggar_sandbox::{HostTree, Ids};

use crate::streams::{copy, write_all};

/// Where events go, and the order they are in.
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
    /// Opens the stream. `-` is stdout, which the program's own output must not share: it could forge events.
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
                    let why = if errno == Errno::NXIO { "nobody reads it".to_owned() } else { errno.to_string() };
                    Problem::new(
                        Code::Stream,
                        format!("the events file {target:?} can't be opened: {why}"),
                        "name a file in a directory that exists, not a link, or a pipe that has a reader",
                    )
                };
                // Opening a pipe would wait for a reader, and no signal could end that: they are blocked by now.
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

    /// From now on events carry the hash of the boundary.
    pub(crate) fn set_policy(&mut self, hash: PolicyHash) {
        self.policy_hash = Some(hash);
    }

    /// Writes one event.
    pub(crate) fn write(&mut self, body: EventBody) {
        let Some(out) = self.out.as_mut().filter(|_| self.failure.is_none()) else { return };
        let event = Event {
            schema: EVENT_SCHEMA,
            seq: self.seq,
            time: rfc3339(SystemTime::now()),
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

    /// Why the stream is incomplete, if it is.
    pub(crate) fn failure(&self) -> Option<Problem> {
        let error = self.failure.as_ref()?;
        Some(Problem::new(
            Code::Stream,
            format!("writing events failed: {}", error.kind()),
            "the record of this exec is incomplete; check the disk the events file is on, or whoever reads the pipe",
        ))
    }
}

/// A reader that stalls must not stop the clock of the program that is written about: after this the stream is given up, and the
/// result says that it is incomplete.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A program must not be able to write its own record.
pub(crate) fn check_out_of_reach(target: Option<&OsStr>, spec: &Spec) -> Result<(), Problem> {
    let Some(target) = target.filter(|target| *target != "-") else { return Ok(()) };
    let parent = Path::new(target).parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // A directory that isn't there is told of when the file is opened.
    let Ok(parent) = parent.canonicalize() else { return Ok(()) };
    let workspace = spec.workspace.iter().filter(|_| spec.fs == FsMode::WorkspaceWrite);
    let writable =
        workspace.chain(spec.mounts.iter().filter(|mount| mount.access == Access::ReadWrite).map(|mount| &mount.host));
    // The file itself may be mounted, and the directory it is in.
    let places = [Some(parent), Path::new(target).canonicalize().ok()];
    for path in writable {
        // One that can't be opened is told of when the sandbox is made.
        let Ok(tree) = HostTree::open(path, Code::InvalidWorkspace, "workspace") else { continue };
        if places.iter().flatten().any(|place| tree.holds(place)) {
            return Err(Problem::new(
                Code::Contradiction,
                format!("the events file {target:?} is in or under something that the sandbox can write"),
                "put it outside of the workspace and of writable mounts",
            ));
        }
    }
    Ok(())
}

/// The time in UTC with milliseconds, by the calendar that has held since 1582.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

/// Days since 1970-01-01 as a date. Years are counted from March, so that the leap day comes last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_what_the_calendar_says() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399, "2000-02-28T23:59:59.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_794_700_800, "2026-11-15T00:00:00.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
