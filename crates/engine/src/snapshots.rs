//! Snapshots of a run's sandbox: when its agent wants them, and which of them hold files that the run can go back to.
//!
//! ```text
//!   … tool ─▶ StepSettled ─▶ StepIntended(TakeSnapshot) ─▶ StepSettled(Kept) ─▶ the next call …
//!                            nothing else is open          has the snapshot's id
//! ```
//! A snapshot is a step of its own. It is intended while nothing else is open, so its files are those of a moment
//! between two steps, and its id is committed with the entry that settles it: journal and files have one commit point.
//! It costs no budget. One that fails is recorded, and the run goes on without it.

use std::collections::BTreeSet;

use saggar_domain::SnapshotId;
use serde::{Deserialize, Serialize};

use crate::effect::Class;

/// Number of snapshots that a run keeps: the newest. Older ones are removed, unless a fork began from them.
pub const SNAPSHOTS_KEPT: usize = 16;

/// When snapshots are taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SnapshotRules {
    /// After at most so many steps, if one of them used the sandbox; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<u64>,
    /// Before tool calls of these classes, if the sandbox was used since the last one.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub before: BTreeSet<Class>,
    /// Before the run ends with an answer, or because a budget is used up or it repeats itself.
    #[serde(skip_serializing_if = "is_false")]
    pub at_end: bool,
}

impl SnapshotRules {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A snapshot of a run's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeptFiles {
    /// The step that took it: the files are those after all earlier steps.
    pub step: u64,
    pub snapshot: SnapshotId,
}

/// What the files of a new sandbox of a run are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Restored {
    /// `None`: there was no snapshot, and they are those of a new sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<KeptFiles>,
    /// The first step whose changes they lack; `None` if they lack none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub older_from: Option<u64>,
}

/// The files of a run, as far as its journal says. Stored with its row, where each snapshot that is named keeps its
/// files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFiles {
    /// Oldest first, at most [`SNAPSHOTS_KEPT`].
    pub kept: Vec<KeptFiles>,
    /// The last time that it went on with other files than those it had.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored: Option<RestoredAt>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredAt {
    /// The last step before.
    pub after: u64,
    #[serde(flatten)]
    pub files: Restored,
}

impl RunFiles {
    /// The newest snapshot whose step is this one or an earlier one.
    pub fn at(&self, step: u64) -> Option<&KeptFiles> {
        self.kept.iter().rev().find(|kept| kept.step <= step)
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a run knows about its snapshots and about changes since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshots {
    pub(crate) files: RunFiles,
    /// The first step since the newest snapshot that may have changed files.
    pub(crate) changed_since: Option<u64>,
    /// The step that last tried to take one.
    pub(crate) tried_at: u64,
    /// Whether a step since then used the sandbox.
    pub(crate) is_used: bool,
}

impl Snapshots {
    /// A step was intended that uses the sandbox.
    pub(crate) fn note_use(&mut self, step: u64) {
        self.is_used = true;
        self.changed_since.get_or_insert(step);
    }

    pub(crate) fn note_try(&mut self, step: u64) {
        self.tried_at = step;
        self.is_used = false;
    }

    pub(crate) fn note_taken(&mut self, step: u64, snapshot: SnapshotId) {
        let kept = &mut self.files.kept;
        kept.push(KeptFiles { step, snapshot });
        kept.drain(..kept.len().saturating_sub(SNAPSHOTS_KEPT));
        self.changed_since = None;
    }

    /// What a sandbox that replaces the run's own for this step starts with.
    pub(crate) fn restorable(&self, for_step: u64) -> Restored {
        Restored {
            from: self.files.kept.last().cloned(),
            older_from: self.changed_since.filter(|since| *since != for_step),
        }
    }

    /// The run goes on with these files, and these steps may change them.
    pub(crate) fn restore(&mut self, files: Restored, after: u64, changed_since: Option<u64>) {
        self.is_used = changed_since.is_some();
        self.changed_since = changed_since;
        self.files.restored = Some(RestoredAt { after, files });
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}
