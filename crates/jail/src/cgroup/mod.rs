//! Cgroups, version 1 and 2, chosen per controller: a host may have some controllers in one and some in the other.
//!
//! A sandbox has one leaf in each hierarchy it needs. If possible it is below its creator's cgroup, so that the host's
//! own limits still apply. Names are known before anything is created, so that the record can be written first.

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
