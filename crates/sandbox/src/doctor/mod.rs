//! Finds out what this host really supports: each capability is tried in a real sandbox, or with the real system call.
//!
//! Nothing here is concluded from a version number. If a trial can't be run the capability counts as "unsupported",
//! with the reason.

mod cores;
mod examine;
mod kvm;
mod proxied;
mod trial;

pub use examine::examine;
pub use kvm::{KVM_TRIAL, measure as measure_kvm};
