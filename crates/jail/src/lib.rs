//! The jail: enters namespaces, cgroups, seccomp and Landlock, and executes the guest agent as PID 1 inside.
//!
//! A [`Plan`] contains everything; the jail decides nothing. The caller must be single-threaded: the child runs
//! ordinary Rust between `clone3` and `execveat`. Nothing is best-effort: if the kernel refuses a step, the child ends
//! and the parent reports which step it was.

mod caps;
pub mod cgroup;
mod child;
mod confine;
mod fence;
mod identity;
mod memfd;
mod network;
mod plan;
mod reap;
mod root;
mod rule;
mod seal;
pub mod seccomp;
mod signal;
mod spawn;
mod supply;
mod sys;
mod userns;
mod waiting;

pub use caps::ROOT_CAPABILITIES;
pub use confine::{ConfineError, ServiceIds, confine};
pub use fence::abi as landlock_abi;
pub use identity::Identity;
pub use memfd::SealedProgram;
pub use network::{
    Datagram, GATE_PORT, Gates, PROXY_PORT, Probes, TrialFailure, is_peer_open, original_destination, receive_datagram,
    send_datagram, try_proxied,
};
pub use plan::{Attributes, Cover, Fate, Fence, NetworkPlan, Op, Plan, SetIds, Source, Supplies};
pub use reap::{Reaped, reap};
pub use rule::Rule;
pub use signal::Signals;
pub use spawn::{Jailed, SpawnError, Step, spawn};
pub use sys::{MountAttributes, clone_tree, pause_briefly, set_mount_attributes};
pub use userns::{IdPair, Mapping, mapping_namespace, range_mapping_namespace};
pub use waiting::Waiting;
