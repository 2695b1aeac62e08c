//! Snapshots of sandboxes: take, list, read, remove, export and import; and sandboxes that are forked from others.
//!
//! A snapshot is a template of the project: its name is the snapshot's id. So a sandbox is started from one as from any template, and what a
//! live sandbox uses isn't removed. What is known about one is a file beside it and no row: both are there, or neither.
//!
//! The supervisor keeps a sandbox still only while this process is connected, so a server that dies in the middle keeps none still.

mod archive;
mod compare;
mod fork;
mod keep;
mod of_run;
mod place;
mod roll_back;
mod still;
mod take;

use std::time::Duration;

use saggar_domain::{ByteSize, Labels, OfRun, SandboxId, SnapshotId, SnapshotRecord, TemplateName};

use crate::permit::Kind;

pub(crate) use archive::Carrying;
pub use archive::SnapshotExport;
pub use fork::{ForkOptions, Forked};
pub use keep::SnapshotQuery;
pub(crate) use place::Taking;
pub(crate) use take::Purpose;

/// Snapshots, as permits name them.
pub const SNAPSHOTS: Kind = Kind::new("snapshots");

/// How much of the disk snapshots may take.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotLimits {
    /// Maximum number of snapshots in a project.
    pub count_max: usize,
    /// The most that one snapshot may add to what its sandbox was started from.
    pub bytes_max: ByteSize,
}

/// What a snapshot is to be.
#[derive(Clone, Debug, Default)]
pub struct TakeSnapshot {
    /// A name that sandboxes may be started by too. It moves from an earlier snapshot that has it.
    pub name: Option<TemplateName>,
    pub labels: Labels,
    /// How long it is kept; `None` for no end.
    pub keep_for: Option<Duration>,
    /// The run that takes it.
    pub of_run: Option<OfRun>,
}

/// A snapshot, and how high its stack of layers is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotView {
    pub record: SnapshotRecord,
    /// The live sandboxes of this server that were started from it.
    pub used_by: Vec<SandboxId>,
}

impl SnapshotView {
    pub fn id(&self) -> &SnapshotId {
        &self.record.id
    }
}
