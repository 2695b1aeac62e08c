//! Snapshots of sandboxes: take, list, read, remove; and forks of sandboxes.

use saggar_domain::template::ContentDigest;
use saggar_domain::{RunId, SandboxId, SnapshotId, TemplateName, Timeout};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::name::{Label, Labels};
use crate::object::only_from_an_object;
use crate::problem::Problem;
use crate::sandbox::CreatedSandbox;
use crate::schema;
use crate::template::TemplateRest;
use crate::time::Timestamp;

/// A snapshot to take. Everything has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct CreateSnapshot {
    /// A name that sandboxes may be started by too, besides the snapshot's id. If an earlier snapshot has it, it moves to this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TemplateName>)]
    pub name: Option<TemplateName>,
    /// Labels for finding it again.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    #[schema(value_type = schema::TextMap)]
    pub labels: Labels,
    /// How long it is kept; by default until it is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub ttl: Option<Timeout>,
}

/// The files of a sandbox at one moment. A sandbox is started from it by its id, as from a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The snapshot's id, which is also the name of a template.
    #[schema(value_type = schema::SnapshotId)]
    pub id: SnapshotId,
    /// Another name that it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TemplateName>, nullable = false)]
    pub name: Option<TemplateName>,
    /// The sandbox that it was taken of. Absent if it was imported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SandboxId>, nullable = false)]
    pub sandbox_id: Option<SandboxId>,
    /// The snapshot that the sandbox's files were before they changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::SnapshotId>, nullable = false)]
    pub parent_id: Option<SnapshotId>,
    /// The step of a run that took it, to go back to. It is removed when no run needs it any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub of_run: Option<SnapshotOfRun>,
    /// Labels for finding it again.
    #[schema(value_type = schema::TextMap)]
    pub labels: Labels,
    /// When it was taken.
    #[schema(value_type = schema::Instant)]
    pub created_at: Timestamp,
    /// When it is removed by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::Instant>, nullable = false)]
    pub expires_at: Option<Timestamp>,
    /// Bytes of what the sandbox had changed since it was started.
    pub bytes: u64,
    /// Number of files, directories and others that it had changed.
    pub entries: u64,
    /// How long its programs stood still, in microseconds.
    pub frozen_us: u64,
    /// Always false on this tier: what is started from it has the files, and starts without the programs.
    pub has_processes: bool,
    /// The live sandboxes that were started from it.
    #[schema(value_type = Vec<schema::SandboxId>)]
    pub used_by: Vec<SandboxId>,
}

/// A step of a run that took a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotOfRun {
    /// The run.
    #[schema(value_type = schema::RunId)]
    pub run_id: RunId,
    /// The number of the step.
    pub step: u64,
}

/// Which snapshots to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListSnapshots {
    /// Only those of this sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::SandboxId>)]
    pub sandbox: Option<SandboxId>,
    /// Only those with this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>, example = "before-migration")]
    pub name: Option<TemplateName>,
    /// Only snapshots with this label, as `name=value`; may be repeated, and then all must match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[param(value_type = Vec<String>, example = json!(["team=red"]))]
    pub label: Vec<Label>,
}

/// What an exported snapshot becomes. Everything has a default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ImportSnapshot {
    /// The digest that the export had. If it has another one now, it is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::TemplateId>)]
    pub digest: Option<ContentDigest>,
    /// A name that sandboxes may be started by too. If an earlier snapshot has it, it moves to this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<String>, example = "before-migration")]
    pub name: Option<TemplateName>,
    /// A label for finding it again, as `name=value`; may be repeated. Without any it has those that it was exported with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[param(value_type = Vec<String>, example = json!(["team=red"]))]
    pub label: Vec<Label>,
    /// How long it is kept; by default until it is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(value_type = Option<schema::TimeSpan>)]
    pub ttl: Option<Timeout>,
}

/// Snapshots of a project, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// The snapshots.
    pub items: Vec<Snapshot>,
}

/// What the removal of a snapshot did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RemovedSnapshot {
    /// The snapshot that is gone.
    #[schema(value_type = schema::SnapshotId)]
    pub id: SnapshotId,
    /// What became of its files.
    pub files: TemplateRest,
}

/// How many forks to make of a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct ForkSandbox {
    /// How many; one by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub count: Option<u32>,
    /// The lifetime of each; the server has a default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::TimeSpan>)]
    pub ttl: Option<Timeout>,
}

/// What became of a request for forks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ForkedSandboxes {
    /// One for each fork that was asked for.
    pub items: Vec<ForkOutcome>,
    /// Always false on this tier: forks have the files of their parent, and start without its programs.
    pub has_processes: bool,
    /// How long the parent's programs stood still, in microseconds.
    pub frozen_us: u64,
}

/// A fork, or why there is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ForkOutcome {
    /// The new sandbox.
    Sandbox(Box<CreatedSandbox>),
    /// Why it was not made. Nothing of it is there.
    Problem(Box<Problem>),
}

/// Where to roll a sandbox back to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct RollBackSandbox {
    /// The snapshot whose files it gets.
    #[schema(value_type = schema::SnapshotId)]
    pub snapshot: SnapshotId,
}

/// What to compare a snapshot with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DiffQuery {
    /// The snapshot that counts as before.
    #[param(value_type = schema::SnapshotId)]
    pub from: SnapshotId,
}

/// What changed from one snapshot to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotDiff {
    /// By path.
    pub items: Vec<SnapshotChange>,
    /// Whether there are more than are listed.
    pub is_cut: bool,
}

/// A path that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotChange {
    /// Absolute. Bytes that are not UTF-8 are replaced.
    pub path: String,
    /// How it differs.
    pub change: SnapshotChangeKind,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// The size of the file before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub size_before: Option<u64>,
    /// The size of the file after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub size_after: Option<u64>,
    /// The changed lines in unified format, if it is a small text before and after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub text: Option<String>,
}

/// How a path differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SnapshotChangeKind {
    /// Only after.
    Added,
    /// Content, kind, permissions or owner differ.
    Changed,
    /// Only before.
    Removed,
}

only_from_an_object!(CreateSnapshot);
only_from_an_object!(RollBackSandbox);
only_from_an_object!(ForkSandbox);
