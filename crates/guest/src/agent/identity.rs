//! Switches to the requested user, in a process that is about to execute its program.
//!
//! There are two cases. If the sandbox has a range of users, the agent is root over it and steps down. If it has a
//! single one, the agent already is that user, has no capability, and can only verify. Its supplementary groups are
//! then those of the user who started the sandbox, which the kernel doesn't let it drop, so a request must name exactly
//! these.
//!
//! INVARIANT: if [`assume`] returns `Ok`, the kernel has confirmed the identity that was requested. The calls that
//! change it are not trusted to have worked. With no_new_privs, which is set here as well, no program can gain more
//! later.

use core::ffi::c_int;

use saggar_guest::{ExecRequest, GROUPS_MAX, OpenRequest};

use super::rule;
use super::sys::{self, Errno};

const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SETPCAP: u32 = 8;

/// Number of bits in the capability sets.
const CAPABILITIES_MAX: u32 = 64;

/// An identity to act as.
#[derive(Clone, Copy)]
pub(super) struct Who<'a> {
    uid: u32,
    gid: u32,
    groups: &'a [u32],
    keep_capabilities: bool,
}

impl<'a> From<&'a ExecRequest> for Who<'a> {
    fn from(request: &'a ExecRequest) -> Self {
        let ExecRequest { uid, gid, groups, keep_capabilities, .. } = request;
        Who { uid: *uid, gid: *gid, groups, keep_capabilities: *keep_capabilities }
    }
}

impl<'a> From<&'a OpenRequest> for Who<'a> {
    fn from(request: &'a OpenRequest) -> Self {
        let OpenRequest { uid, gid, groups, keep_capabilities, .. } = request;
        Who { uid: *uid, gid: *gid, groups, keep_capabilities: *keep_capabilities }
    }
}

/// Drops every capability, in a process that keeps its user.
pub(super) fn drop_capabilities() -> Result<(), Errno> {
    Capabilities { effective: 0, permitted: 0, inheritable: 0 }.set()
}

/// Switches this process to `who`, permanently.
pub(super) fn assume(who: Who<'_>) -> Result<(), Errno> {
    let held = Capabilities::current()?;
    // First, as it needs the very capability that it drops.
    drop_bounding(who.keep_capabilities)?;
    sys::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0)?;
    if held.can_change_user() {
        change_user(who)?;
    }
    let kept = if who.keep_capabilities { held.permitted & !(1 << CAP_SETPCAP) } else { 0 };
    Capabilities { effective: kept, permitted: kept, inheritable: 0 }.set()?;
    if rule::is_on("privilege/no-new-privs") {
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0)?;
    }
    // Changing the user makes a process dumpable again on some hosts, and until the program replaces it, this process
    // still has the agent's memory.
    sys::prctl(libc::PR_SET_DUMPABLE, 0, 0)?;
    verify(who, kept, held.can_change_user())
}

fn change_user(who: Who<'_>) -> Result<(), Errno> {
    // SAFETY: the pointer and the count are those of one slice.
    sys::check(unsafe { libc::setgroups(who.groups.len() as _, who.groups.as_ptr()) })?;
    // SAFETY: takes numbers only.
    sys::check(unsafe { libc::setresgid(who.gid, who.gid, who.gid) })?;
    // SAFETY: takes numbers only.
    sys::check(unsafe { libc::setresuid(who.uid, who.uid, who.uid) })
}

fn drop_bounding(keeps_capabilities: bool) -> Result<(), Errno> {
    if !rule::is_on("privilege/bounding") {
        return Ok(());
    }
    for (capability, is_in_bounding) in bounding() {
        let is_unwanted = !keeps_capabilities || capability == CAP_SETPCAP;
        if is_unwanted && is_in_bounding {
            sys::prctl(libc::PR_CAPBSET_DROP, capability.into(), 0)?;
        }
    }
    Ok(())
}

/// Every capability that the kernel knows, and whether it is in the bounding set. They are numbered without gaps, and
/// the kernel returns an error for numbers beyond them.
fn bounding() -> impl Iterator<Item = (u32, bool)> {
    (0..CAPABILITIES_MAX).map_while(|capability| {
        let is_in_bounding = sys::prctl(libc::PR_CAPBSET_READ, capability.into(), 0).ok()?;
        Some((capability, is_in_bounding == 1))
    })
}

fn verify(who: Who<'_>, kept: u64, could_change_user: bool) -> Result<(), Errno> {
    let refused = Errno(libc::EPERM);

    let (mut user, mut group) = ([0; 3], [0; 3]);
    let ([user_real, user_effective, user_saved], [group_real, group_effective, group_saved]) = (&mut user, &mut group);
    // SAFETY: each pointer is to a number that the call fills in.
    sys::check(unsafe { libc::getresuid(user_real, user_effective, user_saved) })?;
    // SAFETY: as above.
    sys::check(unsafe { libc::getresgid(group_real, group_effective, group_saved) })?;
    if user != [who.uid; 3] || group != [who.gid; 3] {
        return Err(refused);
    }

    let groups_matter = could_change_user || !who.groups.is_empty();
    if groups_matter && !has_exactly(who.groups)? {
        return Err(refused);
    }

    // The ambient set is always a subset of the inheritable one, which is empty.
    let held = Capabilities::current()?;
    if (held.effective, held.permitted, held.inheritable) != (kept, kept, 0) {
        return Err(refused);
    }
    if rule::is_on("privilege/bounding") {
        let is_allowed = |capability| who.keep_capabilities && capability != CAP_SETPCAP;
        if bounding().any(|(capability, is_in_bounding)| is_in_bounding && !is_allowed(capability)) {
            return Err(refused);
        }
    }
    Ok(())
}

/// Whether the supplementary groups are exactly these, in any order.
fn has_exactly(wanted: &[u32]) -> Result<bool, Errno> {
    let mut groups = [0; GROUPS_MAX];
    // SAFETY: the call fills in at most GROUPS_MAX numbers and fails if there are more.
    let count = unsafe { libc::getgroups(GROUPS_MAX as c_int, groups.as_mut_ptr()) };
    let count = usize::try_from(count).map_err(|_| Errno::last())?;
    let held = &groups[..count.min(GROUPS_MAX)];
    Ok(held.iter().all(|group| wanted.contains(group)) && wanted.iter().all(|group| held.contains(group)))
}

/// The three sets that `capget` returns.
#[derive(Clone, Copy)]
struct Capabilities {
    effective: u64,
    permitted: u64,
    inheritable: u64,
}

impl Capabilities {
    fn current() -> Result<Capabilities, Errno> {
        let mut header = CapabilityHeader::this();
        let mut data = [CapabilityData::default(); 2];
        // SAFETY: version 3 has two data structs, which the kernel fills in; the header is read and written.
        let result = unsafe { libc::syscall(libc::SYS_capget, &raw mut header, data.as_mut_ptr()) };
        if result < 0 {
            return Err(Errno::last());
        }
        let [low, high] = data;
        let join = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        Ok(Capabilities {
            effective: join(low.effective, high.effective),
            permitted: join(low.permitted, high.permitted),
            inheritable: join(low.inheritable, high.inheritable),
        })
    }

    fn set(self) -> Result<(), Errno> {
        let half = |shift: u32| CapabilityData {
            effective: (self.effective >> shift) as u32,
            permitted: (self.permitted >> shift) as u32,
            inheritable: (self.inheritable >> shift) as u32,
        };
        let mut header = CapabilityHeader::this();
        let data = [half(0), half(32)];
        // SAFETY: version 3 has two data structs, which the kernel reads; the header is read and written.
        let result = unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) };
        if result < 0 { Err(Errno::last()) } else { Ok(()) }
    }

    fn can_change_user(self) -> bool {
        let needed = 1 << CAP_SETUID | 1 << CAP_SETGID;
        self.effective & needed == needed
    }
}

/// The kernel's `struct __user_cap_header_struct`.
#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: c_int,
}

impl CapabilityHeader {
    fn this() -> CapabilityHeader {
        CapabilityHeader { version: 0x2008_0522, pid: 0 }
    }
}

/// The kernel's `struct __user_cap_data_struct`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}
