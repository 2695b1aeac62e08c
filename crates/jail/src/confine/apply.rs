//! The steps of a confinement, in the order in which each still may be taken.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Gid, Resource, Rlimit, Uid, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use super::filter;

/// Highest possible capability number; the loop ends at the first one the kernel doesn't know.
const LAST_POSSIBLE: u32 = 63;
/// Too small for a core, but not zero: where cores are piped to a program, the kernel starts that program at zero, and
/// doesn't at one.
const CORE_BYTES: u64 = 1;

/// The ids that a service process changes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceIds {
    pub uid: u32,
    pub gid: u32,
}

/// Why a process could not be confined. It must exit.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// Landlock and the ids apply to one thread: the others would stay free.
    #[error("the process has {0} threads, and can be confined only while it has one")]
    Threads(usize),
    #[error("changing to the service's own user and group")]
    Identity(#[source] Errno),
    #[error("dropping capabilities")]
    Capabilities(#[source] Errno),
    #[error("making the process undumpable")]
    Dumps(#[source] Errno),
    #[error("giving up new privileges")]
    NoNewPrivileges(#[source] Errno),
    #[error("the kernel has no Landlock, or has it disabled")]
    Landlock,
    #[error("installing the system call filter")]
    Filter(#[source] Errno),
}

impl ConfineError {
    pub fn help(&self) -> &'static str {
        match self {
            Self::Threads(_) => "this is a defect of the build; report it",
            Self::Identity(_) => "start it as root, or without ids of its own",
            Self::Capabilities(_) | Self::Dumps(_) | Self::NoNewPrivileges(_) => {
                "check that nothing above this process (a container or a security module) forbids it"
            }
            Self::Landlock => "add landlock to the kernel's lsm= parameter",
            Self::Filter(_) => "enable CONFIG_SECCOMP_FILTER in the kernel",
        }
    }
}

/// Confines the calling process, for good. With ids it changes to them, which needs root; otherwise it stays the user
/// that it is.
pub fn confine(ids: Option<ServiceIds>) -> Result<(), ConfineError> {
    match threads() {
        1 => {}
        count => return Err(ConfineError::Threads(count)),
    }
    empty_bounding_set().map_err(ConfineError::Capabilities)?;
    if let Some(ids) = ids {
        change_to(ids).map_err(ConfineError::Identity)?;
    }
    let none = CapabilitySet::empty();
    clear_ambient_capability_set()
        .and_then(|()| set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }))
        .map_err(ConfineError::Capabilities)?;
    let core = Rlimit { current: Some(CORE_BYTES), maximum: Some(CORE_BYTES) };
    // If the limit is already lower, it can't be raised, and needn't be. A change of ids resets dumpability.
    match setrlimit(Resource::Core, core) {
        Ok(()) | Err(Errno::PERM) => {}
        Err(errno) => return Err(ConfineError::Dumps(errno)),
    }
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(ConfineError::Dumps)?;
    set_no_new_privs(true).map_err(ConfineError::NoNewPrivileges)?;
    forbid_files()?;
    filter::install().map_err(ConfineError::Filter)
}

/// Anything unexpected counts as too many.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(usize::MAX, Iterator::count)
}

/// An ordinary user may not change the bounding set, but can't gain anything from it either, without new privileges.
fn empty_bounding_set() -> Result<(), Errno> {
    if !capabilities(None)?.effective.contains(CapabilitySet::SETPCAP) {
        return Ok(());
    }
    for number in 0..=LAST_POSSIBLE {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn change_to(ids: ServiceIds) -> Result<(), Errno> {
    let (uid, gid) = (Uid::from_raw(ids.uid), Gid::from_raw(ids.gid));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

/// Landlock with every right handled and none granted. Kernels before 6.12 have no scopes: there the filter alone keeps
/// the process from abstract sockets and signals.
pub(super) fn forbid_files() -> Result<(), ConfineError> {
    let restricted = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ABI::V6))
        .and_then(|rules| rules.scope(Scope::AbstractUnixSocket | Scope::Signal))
        .and_then(|rules| rules.create())
        .and_then(|rules| rules.no_new_privs(false).restrict_self());
    match restricted.map(|status| status.ruleset) {
        Ok(RulesetStatus::FullyEnforced | RulesetStatus::PartiallyEnforced) => Ok(()),
        Ok(RulesetStatus::NotEnforced) | Err(_) => Err(ConfineError::Landlock),
    }
}
