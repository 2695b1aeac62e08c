//! The reaper: finds and removes what a killed process left behind.
//!
//! It runs at every start and relies on records alone. A record is written before anything it names is created, so
//! nothing can be missed. Processes that still run are killed first and waited for.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use saggar_domain::{Code, HostPath, SandboxId};

use crate::changes::{forget_orphans, forget_pending};
use crate::data::DataDirectory;
use crate::egress::{ChildCgroups, EgressPlace};
use crate::git::remove_new_links;
use crate::holdback::hold_back_within;
use crate::host_tree::HostTree;
use crate::placeholder::{Gate, remove};
use crate::prepare::cgroup_name;
use crate::record::{Dead, FirstProcess, Found, Holdings, UNFINISHED, inspect, start_time};
use crate::supervise::{control_name, unnamed};
use crate::worktree;

/// How long a killed PID 1 may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// One sandbox that was left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    pub sandbox: SandboxId,
    /// An error says what could not be removed; the next start tries again.
    pub outcome: Result<(), String>,
}

/// Removes everything that dead owners left.
pub fn reap(data: &DataDirectory) -> Vec<Leftover> {
    let records = data.sandboxes();
    data.remove_dead_trials();
    // An egress service ends by itself when its server is gone, and can remove neither its name nor its cgroups.
    if let Ok(place) = EgressPlace::open(data.path()) {
        place.sweep();
    }
    // Listed before the records: a record is created before its socket, so a socket without a record belongs to a
    // finished one.
    let sockets = data.open_part("control").map(|directory| (entries(directory.as_fd()), directory));
    let names = entries(records);
    if let Ok((sockets, directory)) = &sockets {
        remove_dead_sockets(sockets, directory.as_fd(), &names);
    }
    if let Ok(directory) = data.open_part("ended") {
        let is_unfinished = |name: &String| name.starts_with('.') && name.ends_with(".json");
        let unfinished = entries(directory.as_fd()).into_iter().filter(is_unfinished);
        unfinished.for_each(|name| remove_unfinished(directory.as_fd(), &name));
    }
    let mut leftovers = Vec::new();
    for name in names {
        let Some(sandbox) = SandboxId::parse(&name) else {
            if name.starts_with(UNFINISHED) {
                remove_unfinished(records, &name);
            }
            continue;
        };
        match inspect(records, &name) {
            Ok(Found::Dead(dead)) => {
                let outcome = bury(data, &sandbox, &dead);
                leftovers.push(Leftover { sandbox, outcome });
            }
            Ok(Found::Live(_) | Found::Gone) => {}
            Err(error) => leftovers
                .push(Leftover { sandbox, outcome: Err(format!("its record can't be read: {}", error.kind())) }),
        }
    }
    let lives = |id: &str| rustix::fs::statat(records, id, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    worktree::remove_orphans(data, lives);
    if let Some(changes) = data.kept_changes() {
        forget_orphans(changes.as_fd(), lives);
    }
    leftovers
}

pub(crate) fn names(records: BorrowedFd<'_>) -> Vec<String> {
    entries(records).into_iter().filter(|name| SandboxId::parse(name).is_some()).collect()
}

fn entries(records: BorrowedFd<'_>) -> Vec<String> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(fd) = openat(records, ".", flags, Mode::empty()) else { return Vec::new() };
    let Ok(directory) = Dir::new(fd) else { return Vec::new() };
    directory.filter_map(|entry| entry.ok()?.file_name().to_str().ok().map(str::to_owned)).collect()
}

fn bury(data: &DataDirectory, sandbox: &SandboxId, dead: &Dead) -> Result<(), String> {
    let (records, name) = (data.sandboxes(), sandbox.as_str());
    if let Some(first) = dead.first {
        end(first)?;
    }
    for leaf in &dead.holdings.cgroups {
        // A valid record names only its own sandbox's leaves in a cgroup filesystem. Earlier versions named leaves
        // after the id.
        let own = [cgroup_name(sandbox), ChildCgroups::name(sandbox), format!("saggar-{name}")];
        let is_leaf = Path::new(leaf).file_name().is_some_and(|last| own.iter().any(|name| last == name.as_str()));
        if !is_leaf || !Path::new(leaf).starts_with("/sys/fs/cgroup") {
            return Err("it names a cgroup that can't be its own".to_owned());
        }
        saggar_jail::cgroup::remove_leaf(Path::new(leaf))
            .map_err(|error| format!("a cgroup can't be removed: {}", error.kind()))?;
    }
    let changes = data.changes().map_err(|error| format!("the kept changes can't be opened: {}", error.kind()))?;
    forget_pending(changes.as_fd(), name)
        .map_err(|error| format!("half-kept changes can't be removed: {}", error.kind()))?;
    worktree::remove(data, name).map_err(|errno| format!("its worktree can't be removed: {errno}"))?;
    if let Ok(directory) = data.open_part("control") {
        for socket in sockets_of(sandbox) {
            match unlinkat(&directory, socket.as_str(), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(format!("its control socket can't be removed: {errno}")),
            }
        }
    }
    let unlink =
        || unlinkat(records, name, AtFlags::empty()).map_err(|errno| format!("its record can't be removed: {errno}"));
    let Some(workspace) = workspace_of(dead)? else { return unlink() };
    let gate =
        Gate::close(records).map_err(|error| format!("the placeholder gate can't be closed: {}", error.kind()))?;
    let Holdings { git_directories, git_links, started_ns, .. } = &dead.holdings;
    // If it can't be removed now, it can't be at the next start either.
    let _ = remove_new_links(&workspace, git_directories, git_links, *started_ns);
    if let (Some(before), Some(id)) = (&dead.holdings.before, SandboxId::parse(name)) {
        let held = hold_back_within(data, &id, &workspace, before, *started_ns, &gate);
        if held.is_postponed {
            return Err("another sandbox still uses files that it created in the workspace".to_owned());
        }
    }
    remove(&workspace, &dead.holdings.placeholders, records, name, &gate);
    // Within the gate, so that others find either both or neither.
    unlink()
}

/// The workspace that contains placeholders and links, unless it is gone along with them.
fn workspace_of(dead: &Dead) -> Result<Option<HostTree>, String> {
    let Holdings { placeholders, git_directories, before, .. } = &dead.holdings;
    let has_any = !placeholders.is_empty() || !git_directories.is_empty() || before.is_some();
    let Some(path) = dead.holdings.workspace.as_deref().filter(|_| has_any) else { return Ok(None) };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        _ => {}
    }
    let tree = HostTree::open(&HostPath::parse(path)?, Code::InvalidWorkspace, "workspace")
        .map_err(|problem| problem.message)?;
    // Another directory by that name isn't ours.
    Ok(Some(tree).filter(|tree| dead.holdings.is_of(tree)))
}

/// All possible names of a sandbox's control socket; the last is the one that earlier versions used until it listened.
fn sockets_of(sandbox: &SandboxId) -> [String; 3] {
    [control_name(sandbox.as_str()), unnamed(sandbox), format!(".{sandbox}.sock")]
}

/// Removes control sockets without a listener or a record: their supervisor died after its sandbox did.
fn remove_dead_sockets(sockets: &[String], directory: BorrowedFd<'_>, records: &[String]) {
    for socket in sockets {
        let is_of = |record: &String| SandboxId::parse(record).is_some_and(|id| sockets_of(&id).contains(socket));
        if !socket.ends_with(".sock") || records.iter().any(is_of) {
            continue;
        }
        let address = format!("/proc/self/fd/{}/{socket}", directory.as_raw_fd());
        let is_dead = || {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            Ok::<_, Errno>(connect(&fd, &SocketAddrUnix::new(address.as_str())?) == Err(Errno::CONNREFUSED))
        };
        if is_dead() == Ok(true) {
            // Tried again at the next start.
            let _ = unlinkat(directory, socket.as_str(), AtFlags::empty());
        }
    }
}

/// Removes an incomplete file, on filesystems where those have names. Its owner holds it only briefly.
fn remove_unfinished(directory: BorrowedFd<'_>, name: &str) {
    let is_old = || {
        let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
        Some(now.as_secs().saturating_sub(stat.st_mtime as u64) > PATIENCE.as_secs())
    };
    if is_old() == Some(true) {
        // Tried again at the next start.
        let _ = unlinkat(directory, name, AtFlags::empty());
    }
}

/// Kills a PID 1, unless its pid belongs to another process by now.
fn end(first: FirstProcess) -> Result<(), String> {
    let Some(pid) = Pid::from_raw(first.pid) else { return Ok(()) };
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
    if start_time(first.pid) != Some(first.started) {
        return Ok(());
    }
    // It may be gone in the meantime.
    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    let mut polls = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let patience = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    match rustix::event::poll(&mut polls, Some(&patience)) {
        Ok(0) => Err(format!("process {} does not die", first.pid)),
        Ok(_) => Ok(()),
        Err(errno) => Err(format!("process {} can't be waited for: {errno}", first.pid)),
    }
}
