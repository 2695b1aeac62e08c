//! The attacker, as the build script made it.

pub(crate) static ATTACKER_IMAGE: &[u8] = include_bytes!(env!("SAGGAR_ATTACKER_IMAGE"));
