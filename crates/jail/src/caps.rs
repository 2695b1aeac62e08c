//! Capabilities: what in-sandbox root keeps, inside its user namespace and nowhere else.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities};

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

/// Leaves the guest agent what it needs: [`ROOT_CAPABILITIES`], and SETPCAP to take even those from the programs it starts.
pub(crate) fn bound_to_agent() -> Result<(), Errno> {
    let kept = ROOT_CAPABILITIES.union(CapabilitySet::SETPCAP);
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
pub(crate) fn shrink_to_agent(is_root_inside: bool) -> Result<(), Errno> {
    let kept = if is_root_inside { ROOT_CAPABILITIES.union(CapabilitySet::SETPCAP) } else { CapabilitySet::empty() };
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })
}
