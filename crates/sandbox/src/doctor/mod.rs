//! What this host can really give, found out by doing it: each capability is tried in a real sandbox, or with the real syscall.
//!
//! Nothing here reads a version number and concludes. A trial that could not be made counts as "unsupported", with the reason.

mod cores;
mod examine;
mod kvm;
mod trial;

pub use examine::examine;
pub use kvm::{KVM_TRIAL, measure as measure_kvm};
