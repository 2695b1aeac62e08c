//! Cgroups, version 1 and 2, chosen per controller: a host may have one controller here and another there.
//!
//! A sandbox has one leaf in each hierarchy it needs, below the cgroup of whoever made it where that is possible, so that
//! limits of the host's own making still hold. Names are known before anything is made, so that a record can come first.

mod freeze;
mod group;
mod host;
mod portion;
mod reap;
mod view;

pub use group::{Counters, Group, InUse, Wanted};
pub use host::{Controller, Host, Place};
pub use reap::remove_leaf;
pub use view::View;
