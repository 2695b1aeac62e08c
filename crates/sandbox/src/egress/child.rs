//! An egress process for one sandbox.
//!
//! It is our child, and lives as long as the session: if we are killed, the kernel closes our end, and it ends. It has cgroups of its
//! own, which the sandbox's record names: what a program makes it use is not charged to the user who started us without a bound.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use saggar_domain::{Code, Problem, SandboxId};
use saggar_jail::cgroup::{Group, Host, Wanted};
use saggar_supervisor::egress::{BUNDLE_VARIABLE, Session, Source, backoff};

use super::{EGRESS, END_PATIENCE};
use crate::ids::random;
use crate::prepare::cgroup_name;
use crate::ranges::Range;

/// Settings of the operator that say which upstream certificates to trust. Nothing else of our environment reaches it.
const PASSED_ON: &[&str] = if cfg!(feature = "mutation") {
    // Names rules to switch off, in a build that can.
    &[BUNDLE_VARIABLE, "SAGGAR_MUTATE"]
} else {
    &[BUNDLE_VARIABLE]
};
/// How often it is started again within [`WINDOW`]: one that dies so often would die again.
const RESTARTS_MAX: usize = 5;
const WINDOW: Duration = Duration::from_secs(60);

/// Memory and threads that it may use. More than a thousand connections need.
const LIMITS: Wanted = Wanted { memory: Some(1 << 30), pids: Some(64), cpu_millis: None, is_freezable: false };

#[derive(Debug, Default)]
pub(crate) struct ChildProcess {
    running: Option<Running>,
    cgroups: ChildCgroups,
    /// When it was started again, oldest first.
    restarts: VecDeque<Instant>,
}

/// The cgroups of the process, made once the sandbox's record names them. A handle.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChildCgroups(Rc<RefCell<Members>>);

#[derive(Debug, Default)]
struct Members {
    group: Option<Group>,
    pid: Option<u32>,
}

impl ChildCgroups {
    /// The directories that [`Self::make`] will create.
    pub(crate) fn paths(host: &Host, sandbox: &SandboxId) -> Vec<PathBuf> {
        Group::paths(host, &Self::name(sandbox), &LIMITS)
    }

    /// The name of the leaves.
    pub(crate) fn name(sandbox: &SandboxId) -> String {
        format!("{}-egress", cgroup_name(sandbox))
    }

    /// Makes them, and puts the process in.
    pub(crate) fn make(&self, host: &Host, sandbox: &SandboxId) -> Result<(), Problem> {
        let name = Self::name(sandbox);
        let made = Group::begin(host, &name, &LIMITS).and_then(|mut group| {
            group.complete(host, &name, &LIMITS)?;
            Ok(group)
        });
        let mut members = self.0.borrow_mut();
        members.group = Some(made.map_err(|error| failed(&error.kind()))?);
        members.join()
    }

    /// Removes them. The process has ended by now.
    pub(crate) fn remove(&self) -> io::Result<()> {
        self.0.borrow_mut().group.take().map_or(Ok(()), Group::remove)
    }

    fn admit(&self, pid: u32) -> Result<(), Problem> {
        let mut members = self.0.borrow_mut();
        members.pid = Some(pid);
        members.join()
    }
}

impl Members {
    fn join(&self) -> Result<(), Problem> {
        match (&self.group, self.pid) {
            (Some(group), Some(pid)) => group.admit(pid).map_err(|error| failed(&error.kind())),
            _ => Ok(()),
        }
    }
}

impl ChildProcess {
    pub(crate) fn cgroups(&self) -> ChildCgroups {
        self.cgroups.clone()
    }
}

#[derive(Debug)]
struct Running {
    child: Child,
    /// Its user. No sandbox gets an id of this range while it lives.
    _range: Option<Range>,
}

impl Source for ChildProcess {
    /// Starts the process. It gets ready while the caller goes on.
    fn connect(&mut self) -> Result<Session, Problem> {
        // The one before, which is dead or without a session.
        drop(self.running.take());
        let (session, theirs) = Session::pair().map_err(|errno| failed(&errno))?;
        let range = user().map_err(|error| failed(&error))?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("saggar").arg(EGRESS).args(range.as_ref().map(|range| range.base().to_string()));
        command.env_clear().envs(PASSED_ON.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))));
        let stdin = Stdio::from(File::from(theirs));
        let child = command.current_dir("/").stdin(stdin).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.map_err(|error| failed(&error.kind()))?;
        let pid = child.id();
        // From here on the child is ended if anything fails.
        self.running = Some(Running { child, _range: range });
        self.cgroups.admit(pid)?;
        Ok(session)
    }

    fn delay(&mut self, failed: u32) -> Option<Duration> {
        let now = Instant::now();
        while self.restarts.front().is_some_and(|first| now.duration_since(*first) > WINDOW) {
            self.restarts.pop_front();
        }
        self.restarts.push_back(now);
        (self.restarts.len() <= RESTARTS_MAX).then(|| backoff(failed))
    }
}

impl Drop for Running {
    /// Its session is closed by now, so it ends.
    fn drop(&mut self) {
        let deadline = Instant::now() + END_PATIENCE;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            saggar_jail::pause_briefly();
        }
        // It may have ended just now.
        let _ = self.child.kill();
        let _ = self.child.wait(); // As above.
    }
}

/// As root it gets a user that nothing else has. An ordinary user has only their own.
fn user() -> io::Result<Option<Range>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let random = random().map_err(io::Error::other)?;
    Range::take(u32::from_ne_bytes(random)).map(Some)
}

fn failed(why: &dyn std::fmt::Display) -> Problem {
    Problem::new(
        Code::SetupFailed,
        format!("the egress process can't be started: {why}"),
        "`saggar doctor` shows whether this host can manage a sandbox's network",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_dies_again_and_again_is_given_up() {
        let mut child = ChildProcess::default();
        let delays: Vec<Option<Duration>> = (0..7).map(|failed| child.delay(failed)).collect();
        let millis = |delay: &Option<Duration>| delay.map(|delay| delay.as_millis());
        let expected = [Some(250), Some(500), Some(1000), Some(2000), Some(4000), None, None];
        assert_eq!(delays.iter().map(millis).collect::<Vec<_>>(), expected);
    }
}
