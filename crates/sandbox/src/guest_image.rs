//! The guest agent, as the build made it.

/// The static executable that becomes PID 1 of every sandbox.
pub(crate) static GUEST_IMAGE: &[u8] = include_bytes!(env!("SAGGAR_GUEST_IMAGE"));
