//! Sandboxes: one lifecycle over all tiers, from a spec until every process is dead and nothing is left behind.
//!
//! This crate decides how to implement a spec on this host, and refuses what it can't. It knows nothing of runs or
//! HTTP.

mod accounts;
mod acting;
mod allocator;
mod answers;
#[cfg(panic = "abort")]
mod backtrace;
mod borrowed;
mod changes;
mod data;
mod disk;
mod doctor;
mod egress;
mod enforce;
mod enter;
mod ext4;
pub mod fail_point;
mod git;
mod guest_image;
mod holdback;
mod host_tree;
mod ids;
mod keyring;
mod loop_device;
mod placeholder;
mod plan;
mod prepare;
mod processors;
mod ranges;
mod reaper;
mod record;
mod report;
mod resolve;
mod rules;
mod run;
mod supervise;
mod template;
mod templates;
mod trail;
mod volume;
mod worktree;

pub use accounts::account_in;
pub use allocator::Allocator;
pub use answers::Answers;
pub use changes::{
    Applied, AppliedBranch, ApplyOutcome, Change, Changes, Entry, Guard, Hidden, Kind, Name, Skipped, Unified, Wanted,
    is_plain,
};
pub use data::DataDirectory;
pub use doctor::{KVM_TRIAL, examine, measure_kvm};
pub use egress::{EGRESS, EGRESS_SERVICE, EgressLock, EgressPlace, ServiceProcess};
pub use host_tree::HostTree;
pub use ids::{Ids, policy_hash};
pub use keyring::secrets_in_keyring;
pub use ranges::STORE_IDS;
pub use reaper::{Leftover, reap};
pub use report::{Report, RootChanges};
pub use resolve::{resolve, resolve_held};
pub use rules::rules;
pub use run::{Job, run};
pub use saggar_jail::{Rule, Signals};
pub use saggar_supervisor::egress::{HostAnswer, TRUST_ADDED, Tape, host_bundle, upstream_of_the_host};
pub use saggar_supervisor::{Asker, Listener, Question, Sink, Streams, TRUST_BUNDLE, TRUST_OWN};
pub use supervise::{SUPERVISE, supervise};
pub use template::paths_of_the_host;
pub use templates::{HeldTemplate, LOCAL_PROJECT, NamedRecord, StoredLayer, Templates};
pub use trail::held_for;
pub use volume::{NewVolume, VolumeQuota, Volumes, collect_volumes, volume_users};
pub use worktree::{NewBranch, NewCommit, plant_repository};
