//! The files of runs: when an agent wants them kept in snapshots, which there are, and going back to them.

use std::collections::BTreeSet;

use saggar_domain::{RunId, SnapshotId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::agent::EffectClass;
use crate::object::only_from_an_object;
use crate::schema;

/// When snapshots of the run's sandbox are taken. Each is a step of its own, which costs no budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct AgentSnapshots {
    /// After at most so many steps, if one of them used the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 5)]
    pub every: Option<u64>,
    /// Before calls of tools of these classes, if the sandbox was used since the last one.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    #[schema(value_type = Vec<EffectClass>)]
    pub before: BTreeSet<EffectClass>,
    /// Before the run ends, unless it is cancelled, fails or is out of time.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub at_end: bool,
}

impl AgentSnapshots {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The error and the remedy for what the types allow.
    pub(crate) fn wrong(&self) -> Option<(String, String)> {
        (self.every == Some(0)).then(|| {
            let help = "use at least 1, which is one after each step that uses the sandbox, or leave it out";
            ("snapshots.every is 0".to_owned(), help.to_owned())
        })
    }
}

/// The files of a run that are kept, and where those of its sandbox come from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunFiles {
    /// The snapshots that the run can go back to, oldest first: the newest that it took.
    pub snapshots: Vec<RunSnapshot>,
    /// The last time that it went on with other files than those it had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restored: Option<RestoredFiles>,
}

/// Files that an earlier run left, and a run's sandbox began with: `sandbox.reuse` of its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunBeganWith {
    /// The run that left them.
    #[schema(value_type = schema::RunId)]
    pub run_id: RunId,
    /// The snapshot that they are in.
    #[schema(value_type = schema::SnapshotId)]
    pub snapshot_id: SnapshotId,
}

/// A snapshot of a run's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunSnapshot {
    /// The step that took it: the files are those after all steps before.
    pub step: u64,
    /// The snapshot.
    #[schema(value_type = schema::SnapshotId)]
    pub id: SnapshotId,
}

/// Files that a run went on with: it is a fork, was rolled back, or had lost its sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RestoredFiles {
    /// The last step before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_step: Option<u64>,
    /// The snapshot that they are of. Absent: they are those of a new sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub snapshot: Option<RunSnapshot>,
    /// The first step whose changes they lack. Absent: they lack none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub older_from_step: Option<u64>,
}

/// Where to go back to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct RollBackRun {
    /// The last step that counts; 0 for the beginning.
    pub at_step: u64,
    /// The generation of the run that goes back. With it the request is effective once, and repeating it gives the same answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u32>,
    /// A message to the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A run that goes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolledBackRun {
    /// The run.
    #[schema(value_type = schema::RunId)]
    pub id: RunId,
    /// The last step that counts.
    pub at_step: u64,
    /// The files that it goes on with.
    pub files: RestoredFiles,
    /// Calls after that step whose effects stay, as of the request: nothing outside the sandbox is undone.
    pub stays_done: Vec<StaysDone>,
}

/// A call whose effects a rollback doesn't undo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StaysDone {
    /// The number of the step.
    pub step: u64,
    /// The tool that was called.
    pub tool: String,
    /// What a crash in the middle of it means.
    pub class: EffectClass,
    /// Whether it certainly was done; otherwise it may have been.
    pub is_certain: bool,
    /// Whether it worked in the sandbox: its files are taken back, and what its programs did outside stays.
    pub in_sandbox: bool,
    /// The run that it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::RunId>, nullable = false)]
    pub child: Option<RunId>,
}

only_from_an_object!(AgentSnapshots, RollBackRun);
