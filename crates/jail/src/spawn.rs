//! The parent's half: creates the child, maps its ids, and waits until the agent runs or a step failed.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use rustix::process::Pid;

use crate::identity::Identity;
use crate::network::Gates;
use crate::plan::{NetworkPlan, Plan, Supplies};
use crate::rule::Rule;
use crate::seccomp::{Filter, Listener};
use crate::sys::{Cloned, clone3};
use crate::{child, sys, userns};

/// A sandbox whose agent is running.
#[derive(Debug)]
pub struct Jailed {
    /// PID 1 of the sandbox, as the host numbers it.
    pub pid: Pid,
    /// Refers to the same process, and is immune to pid reuse.
    pub pidfd: OwnedFd,
    /// Receives the filter's notifications about telling calls.
    pub listener: Listener,
    /// Holds the changes of a scratch workspace; outlives the sandbox for as long as this is open.
    pub layer: Option<OwnedFd>,
    /// Holds the changes of the root, if the plan hands them over; outlives the sandbox for as long as this is open.
    pub changes: Option<OwnedFd>,
    /// The sockets through which a proxied sandbox reaches the network; no process inside has them.
    pub gates: Option<Gates>,
    /// The files of [`crate::Op::Kept`], in the plan's order.
    pub kept: Vec<OwnedFd>,
    /// The kernel's counters of a network namespace without a way out, opened before anything used it; empty for any other network.
    pub counters: Vec<OwnedFd>,
}

/// Why the sandbox could not be started. Nothing of it is left: the child is reaped.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The kernel could not create a process in new namespaces.
    #[error("creating namespaces")]
    Clone(#[source] Errno),
    /// The ids could not be mapped.
    #[error("mapping ids into the user namespace")]
    Map(#[source] Errno),
    /// The child could not be talked to.
    #[error("communicating with the new process")]
    Channel(#[source] Errno),
    /// What the child needs could not be prepared.
    #[error("preparing the sandbox's cgroups and agent")]
    Supply(#[source] std::io::Error),
    /// A step inside failed.
    #[error("{step}")]
    Step {
        step: Step,
        /// The index of the plan's operation, if the step is `Root`.
        index: usize,
        #[source]
        errno: Errno,
    },
    /// The child died without reporting a failure.
    #[error("the new process died during set-up")]
    Died,
    /// The child took too long. PID 1 of a pid namespace that crashes may not die from it.
    #[error("the new process hung during set-up")]
    Hung,
}

macro_rules! steps {
    ($($(#[$doc:meta])* $name:ident = $number:literal $text:literal),+ $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Step { $($(#[$doc])* $name = $number),+ }

        impl Step {
            pub(crate) fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }
        }

        impl std::fmt::Display for Step {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $(Self::$name => $text),+ })
            }
        }
    };
}

steps! {
    Maps = 1 "waiting for the id maps",
    /// Becoming root of the range.
    Identity = 2 "switching to the sandbox's identity",
    Supplies = 16 "waiting for the cgroups and the agent",
    Cgroup = 3 "joining the cgroups",
    Hostname = 4 "setting the host name",
    Network = 5 "creating the network namespace",
    Routes = 17 "routing every address to the loopback",
    Redirect = 18 "installing the network rules (nftables with tproxy)",
    Gates = 19 "opening the network gates",
    Keyring = 6 "creating a session keyring",
    Storage = 7 "creating the private storage",
    /// One of the plan's operations.
    Root = 8 "building the private root",
    Pivot = 9 "entering the private root",
    Limits = 10 "lowering the resource limits",
    /// Capabilities and no_new_privs.
    Capabilities = 11 "dropping capabilities",
    Landlock = 12 "applying the Landlock rules",
    Descriptors = 13 "arranging descriptors",
    Seccomp = 14 "installing the seccomp filter",
    Execute = 15 "executing the agent",
}

/// The child's report of a failed step.
pub(crate) struct SetupFailure {
    pub(crate) step: Step,
    pub(crate) index: u16,
    pub(crate) errno: Errno,
}

impl SetupFailure {
    const LEN: usize = 7;

    pub(crate) fn to_bytes(&self) -> [u8; Self::LEN] {
        let [a, b] = self.index.to_le_bytes();
        let [c, d, e, f] = self.errno.raw_os_error().to_le_bytes();
        [self.step as u8, a, b, c, d, e, f]
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let [step, a, b, c, d, e, f] = *<&[u8; Self::LEN]>::try_from(bytes).ok()?;
        Some(Self {
            step: Step::from_number(step)?,
            index: u16::from_le_bytes([a, b]),
            errno: Errno::from_raw_os_error(i32::from_le_bytes([c, d, e, f])),
        })
    }
}

/// Starts a sandbox. The caller must be single-threaded. `supply` runs while the child builds its root.
pub fn spawn(plan: &Plan, supply: impl FnOnce() -> std::io::Result<Supplies>) -> Result<Jailed, SpawnError> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(SpawnError::Channel)?;
    // The child creates the network namespace, in parallel.
    let mut flags =
        libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    for (rule, flag) in [(Rule::IpcNamespace, libc::CLONE_NEWIPC), (Rule::UtsNamespace, libc::CLONE_NEWUTS)] {
        if !rule.is_on() {
            flags &= !flag;
        }
    }
    let cgroup = plan.cgroup.as_ref().map(std::os::fd::AsRawFd::as_raw_fd);
    let cloned = match plan.identity {
        Identity::Range { base } if Rule::OwnCounters.is_on() => as_owner(base, || clone3(flags as u64, cgroup)),
        Identity::Range { .. } | Identity::Single { .. } => clone3(flags as u64, cgroup),
    };
    let (pid, pidfd) = match cloned.map_err(SpawnError::Clone)? {
        Cloned::Child => {
            let _here = NoWayBack;
            drop(ours);
            child::run(plan, theirs)
        }
        Cloned::Parent { pid, pidfd } => (pid, pidfd),
    };
    drop(theirs);
    let pid = Pid::from_raw(pid).expect("clone3 returned a child, whose number is not zero");
    match attend(plan, pid, &ours, supply) {
        Ok(Received { listener, layer, changes, gates, kept, counters }) => {
            Ok(Jailed { pid, pidfd, listener, layer, changes, gates, kept, counters })
        }
        Err(error) => {
            // It is already dead in most cases; then the first call fails and the second reaps it.
            let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
            let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()); // Reaping our own child can't fail usefully.
            Err(error)
        }
    }
}

/// Ends the child if a panic would unwind into stack frames of its parent, where it would clean up what belongs to the
/// parent.
struct NoWayBack;

impl Drop for NoWayBack {
    fn drop(&mut self) {
        sys::exit_now(125);
    }
}

/// Creates a user namespace owned by the first id of its range. What is counted per user (inotify, queued signals and
/// more) is also counted for the owner of each namespace above: this way never for the host's root. Where only root may
/// create user namespaces, root is the owner.
fn as_owner(base: u32, clone: impl Fn() -> Result<Cloned, Errno>) -> Result<Cloned, Errno> {
    let attempt = sys::with_effective_uid(base, &clone);
    match attempt {
        Err(Errno::PERM | Errno::NOSPC | Errno::ACCESS) => clone(),
        other => other,
    }
}

/// What the child sends before it becomes the agent.
struct Received {
    listener: Listener,
    layer: Option<OwnedFd>,
    changes: Option<OwnedFd>,
    gates: Option<Gates>,
    kept: Vec<OwnedFd>,
    counters: Vec<OwnedFd>,
}

fn attend(
    plan: &Plan,
    pid: Pid,
    ours: &OwnedFd,
    supply: impl FnOnce() -> std::io::Result<Supplies>,
) -> Result<Received, SpawnError> {
    let number = pid.as_raw_nonzero().get();
    if let Identity::Single { .. } = plan.identity {
        // Without this an ordinary user may not map a gid.
        userns::write_map(number, "setgroups", "deny").map_err(SpawnError::Map)?;
    }
    userns::write_map(number, "uid_map", &plan.identity.uid_map()).map_err(SpawnError::Map)?;
    userns::write_map(number, "gid_map", &plan.identity.gid_map()).map_err(SpawnError::Map)?;
    rustix::net::send(ours, &[1], rustix::net::SendFlags::NOSIGNAL).map_err(SpawnError::Channel)?;
    let supplies = supply().map_err(SpawnError::Supply)?;
    match crate::supply::send(ours, &supplies, &Filter::compile(plan.set_ids)) {
        // A child that is gone has reported why, and that is read next.
        Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
        Err(errno) => return Err(SpawnError::Channel(errno)),
    }
    drop(supplies);
    let (mut layer, mut changes, mut gates, mut kept, mut counters) = (None, None, None, Vec::new(), Vec::new());
    let listener = loop {
        let (message, mut descriptors) = receive(ours)?;
        match (message.as_slice(), descriptors.len()) {
            ([LAYER], 1) => layer = descriptors.pop(),
            ([CHANGES], 1) => changes = descriptors.pop(),
            ([KEPT], 1..) => kept = descriptors,
            ([COUNTERS], 1..) => counters = descriptors,
            ([GATES, counts @ ..], 1..) => {
                let counts = <[u8; 3]>::try_from(counts).map_err(|_| SpawnError::Died)?;
                gates = Some(Gates::from_parts(counts, descriptors).ok_or(SpawnError::Died)?);
            }
            ([READY], 1) => break Listener::from_fd(descriptors.remove(0)),
            (message, _) => return Err(said(message)),
        }
    };
    if plan.network == NetworkPlan::Proxied && Rule::NetworkNamespace.is_on() && gates.is_none() {
        return Err(SpawnError::Died);
    }
    // The filter is installed. Only the agent's execution is left, and silence means that it succeeded.
    match receive(ours)? {
        (message, _) if message.is_empty() => Ok(Received { listener, layer, changes, gates, kept, counters }),
        (message, _) => Err(said(&message)),
    }
}

/// Interprets a last message.
fn said(message: &[u8]) -> SpawnError {
    SetupFailure::from_bytes(message).map_or(SpawnError::Died, SpawnError::from)
}

/// The layer of a scratch workspace is attached.
pub(crate) const LAYER: u8 = 2;
/// What holds the changes of the root is attached.
pub(crate) const CHANGES: u8 = 6;
/// The gates of a proxied sandbox are attached; their numbers by kind follow.
pub(crate) const GATES: u8 = 4;
/// The files that the parent may write are attached.
pub(crate) const KEPT: u8 = 5;
/// The counters of a network namespace without a way out are attached.
pub(crate) const COUNTERS: u8 = 7;
/// The filter's listener is attached, and the agent is executed next.
pub(crate) const READY: u8 = 3;

/// Maximum time of set-up, on the slowest host.
const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

fn receive(ours: &OwnedFd) -> Result<(Vec<u8>, Vec<OwnedFd>), SpawnError> {
    let mut polls = [PollFd::new(ours, PollFlags::IN)];
    // Interrupted or ready: the read shows which.
    if let Ok(0) = poll(&mut polls, Some(&PATIENCE)) {
        return Err(SpawnError::Hung);
    }
    let mut bytes = [0u8; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(Gates::COUNT_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(ours.as_fd(), &mut [std::io::IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)
        {
            // A reset is reported once, if the child is gone and left something unread; earlier messages can still be
            // read.
            Err(Errno::INTR | Errno::CONNRESET) => {}
            other => break other.map_err(SpawnError::Channel)?,
        }
    };
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(attached) = message {
            descriptors.extend(attached);
        }
    }
    Ok((bytes[..received.bytes].to_vec(), descriptors))
}

impl From<SetupFailure> for SpawnError {
    fn from(failure: SetupFailure) -> Self {
        Self::Step { step: failure.step, index: failure.index.into(), errno: failure.errno }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_that_panics_never_gets_back_to_its_parents_frames() {
        std::panic::set_hook(Box::new(|_| {}));
        // SAFETY: the child touches nothing but its own stack before it exits.
        match unsafe { libc::fork() } {
            0 => {
                let caught = std::panic::catch_unwind(|| {
                    let _here = NoWayBack;
                    panic!("in the child");
                });
                sys::exit_now(if caught.is_err() { 1 } else { 2 })
            }
            child => {
                let child = Pid::from_raw(child).expect("fork works");
                let status = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
                let (_, status) = status.expect("our own child").expect("it has ended");
                assert_eq!(status.exit_status(), Some(125));
            }
        }
    }
}
