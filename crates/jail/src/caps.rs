//! Capabilities: what in-sandbox root keeps, inside its user namespace and nowhere else.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
};

use crate::identity::Identity;

/// What `--user root` has: enough to install packages and build, nothing that reaches the kernel's own objects.
pub const ROOT_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::NET_BIND_SERVICE);

/// Highest capability number the kernel could know; asking for one it doesn't ends the loop.
const LAST_POSSIBLE: u32 = 63;

/// What the agent has: as root of the namespace [`ROOT_CAPABILITIES`], and SETPCAP to take even those from the programs it starts.
/// Where there is only one id, there is no other to change to, and SETUID and SETGID would promise what can't be. As anyone else
/// nothing, and nothing to take either.
fn agents(identity: Identity) -> CapabilitySet {
    let all = ROOT_CAPABILITIES.union(CapabilitySet::SETPCAP);
    match identity {
        Identity::Range { .. } => all,
        Identity::Single { inside: 0, .. } => all.difference(CapabilitySet::SETUID.union(CapabilitySet::SETGID)),
        Identity::Single { .. } => CapabilitySet::empty(),
    }
}

/// Takes from the bounding set what the agent will not have: no program inside can gain it, whatever it executes.
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

/// Drops the rights that setting up needed, keeping the agent's. Permitted, effective and inheritable all shrink.
pub(crate) fn shrink_to_agent(identity: Identity) -> Result<(), Errno> {
    let kept = agents(identity);
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })
}
