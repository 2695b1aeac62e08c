//! Volumes: named storage of a project that outlives its sandboxes.
//!
//! ```text
//! volumes/PROJECT/NAME/volume.json  → what it is; a user of the volume holds a lock on it
//!                 NAME/content      → an ext4, all of whose blocks are allocated
//!                 .lock             → held while volumes are made and removed
//!                 .new-…, .gone-…   → half made, half removed
//! ```
//! The size of the file is the limit of everything in it. It is mounted through a loop device, without a place in the host's tree, and each
//! sandbox gets a mount with its own ids. The kernel unmounts it with its last user, however that ended, so that nothing is
//! left to reap. The files belong to the store's ids, which neither the host nor any sandbox has.
//!
//! A volume appears and disappears by a rename. Who uses one is known by the lock; which sandboxes these are is in their records.

mod create;
mod hold;
mod project;
mod remove;

pub use create::{NewVolume, VolumeQuota};
pub(crate) use hold::{HeldVolume, not_root};
pub use project::{Volumes, collect_volumes, volume_users};
