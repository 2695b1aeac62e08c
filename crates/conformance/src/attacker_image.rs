//! The attacker, as the build made it.

/// The static executable that makes the attempts.
pub(crate) static ATTACKER_IMAGE: &[u8] = include_bytes!(env!("SAGGAR_ATTACKER_IMAGE"));
