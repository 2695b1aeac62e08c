//! What a sandbox changed in its workspace: list, apply, drop.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::object::only_from_an_object;

/// Which changes to apply.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct ApplyChanges {
    /// Only these paths and everything below them, relative to the workspace; by default all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub paths: Vec<String>,
}

/// Which changes to compare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ChangeDiffQuery {
    /// Only this path and everything below it, relative to the workspace; may be repeated. By default all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[param(value_type = Vec<String>, example = json!(["src"]))]
    pub path: Vec<String>,
}

/// Changes, compared with the host's directory as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeDiffs {
    /// Each change that was selected.
    pub items: Vec<ChangeDiff>,
}

/// One change, compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeDiff {
    /// The path, relative to the workspace.
    pub path: String,
    /// As in the list of changes.
    pub change: String,
    /// As in the list of changes.
    pub kind: String,
    /// A unified diff of its contents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub diff: Option<String>,
    /// Why there is none: `not_a_file`, `not_text`, or `too_long` if the answer is full; then ask for this path alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
}

/// The changes of a sandbox, in no particular order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeList {
    /// The changes.
    pub items: Vec<SandboxChange>,
    /// Paths that could not be kept.
    pub skipped: Vec<SkippedChange>,
    /// The new commits, if the directory was mounted as a worktree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub branch: Option<NewBranch>,
}

/// The branch that applying a worktree makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewBranch {
    /// Its name: `saggar/` and the sandbox's id.
    pub name: String,
    /// The sandbox's commits, the latest first; at most 1000.
    pub commits: Vec<NewCommit>,
}

/// A commit that a sandbox made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewCommit {
    /// Its id.
    pub id: String,
    /// The first line of its message.
    pub subject: String,
}

/// One changed path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxChange {
    /// The path, relative to the workspace. Bytes that are no plain text are escaped.
    pub path: String,
    /// `added`, `modified`, `removed`, or `mode` if only its permissions changed.
    pub change: String,
    /// `file`, `directory` or `link`.
    pub kind: String,
    /// Its size in bytes.
    pub size: u64,
    /// Whether the host changed it while the sandbox ran. It is not applied then.
    pub changed_on_host: bool,
}

/// A path that could not be kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SkippedChange {
    /// The path, relative to the workspace.
    pub path: String,
    /// The reason.
    pub why: String,
}

/// The outcome of applying changes, path by path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppliedChanges {
    /// Each change that was selected.
    pub items: Vec<AppliedChange>,
    /// The branch of the host's repository that has them now, if the directory was mounted as a worktree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub branch: Option<AppliedBranch>,
}

/// A branch that was made of a worktree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppliedBranch {
    /// Its name.
    pub name: String,
    /// The commit that it leads to.
    pub commit: String,
}

/// One change that was selected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AppliedChange {
    /// The path, relative to the workspace.
    pub path: String,
    /// Whether the host's directory has it now, or the branch.
    pub applied: bool,
    /// Why it was refused. The change is still kept then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
}

only_from_an_object!(ApplyChanges);
