//! Capabilities that root of a sandbox keeps, valid only inside its user namespace.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
};

use crate::identity::Identity;

/// Capabilities of `--user root`: enough to install packages and build, without access to the kernel's own objects.
pub const ROOT_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// Highest possible capability number; the loop ends at the first one the kernel doesn't know.
const LAST_POSSIBLE: u32 = 63;

/// The agent's capabilities. As root of the namespace it has [`ROOT_CAPABILITIES`], and SETPCAP to take even those from
/// the programs it starts. With a single id there is no other id to change to, so SETUID and SETGID are left out. As
/// any other user it has none.
fn agents(identity: Identity) -> CapabilitySet {
    let all = ROOT_CAPABILITIES.union(CapabilitySet::SETPCAP);
    match identity {
        Identity::Range { .. } => all,
        Identity::Single { inside: 0, .. } => all.difference(CapabilitySet::SETUID.union(CapabilitySet::SETGID)),
        Identity::Single { .. } => CapabilitySet::empty(),
    }
}

/// Drops everything that the agent won't have from the bounding set, so that no program inside can gain it by executing
/// another.
pub(crate) fn bound_to_agent(identity: Identity) -> Result<(), Errno> {
    let kept = agents(identity);
    for number in 0..=LAST_POSSIBLE {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    clear_ambient_capability_set()?;
    Ok(())
}

/// Drops the capabilities that set-up needed and keeps the agent's. Permitted, effective and inheritable sets all
/// shrink.
pub(crate) fn shrink_to_agent(identity: Identity) -> Result<(), Errno> {
    let kept = agents(identity);
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })
}
