//! Directories of the host for sandboxes of a server: mounted copy-on-write, and changed only when somebody applies what a sandbox did.
//!
//! The setting `workspaces` names the operator's, which every project may use. Only a user of the host who is known by the server's Unix
//! socket names a path. It is opened in that user's name, by the supervisor and again for its changes: what is compared with it or
//! applied to it is what that user may read and write, whatever was swapped in meanwhile.

use saggar_domain::{FsMode, HostPath, HostUser, SandboxId, WorkspaceName};
use saggar_sandbox::{ApplyOutcome, Changes, Entry, Kind, NewBranch, Skipped, Unified, Wanted};
use saggar_store::Life;

use super::Sandboxes;
use super::create::{NewSandbox, refuse};
use crate::fault::Fault;
use crate::permit::{Action, Permit};

/// The operator's directories, by name.
pub type Workspaces = std::collections::BTreeMap<WorkspaceName, HostPath>;

/// What a sandbox changed in its workspace.
#[derive(Debug)]
pub struct KeptChanges {
    pub entries: Vec<Entry>,
    /// Paths that could not be kept.
    pub skipped: Vec<Skipped>,
    /// The new commits of a worktree.
    pub branch: Option<NewBranch>,
}

/// The directory that a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskedWorkspace {
    /// One of the operator's.
    Named(WorkspaceName),
    /// The directory of a user of this host.
    Directory { path: HostPath, user: HostUser },
}

/// The most text of differences in one answer.
const DIFF_BYTES_MAX: usize = 8 << 20;

/// One change, compared with the host's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeDiff {
    pub entry: Entry,
    pub text: Result<String, NoDiff>,
}

/// Why there is no difference to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoDiff {
    /// It is a directory or a link, or only its permissions changed.
    NotAFile,
    /// One of the two sides is not text, too long, or not readable for the directory's user.
    NotText,
    /// The answer is full: ask for this path alone.
    Omitted,
}

/// One change that was to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedChange {
    pub path: String,
    /// Why it was not applied. It is still kept then.
    pub refused: Option<String>,
}

/// What applying did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedChanges {
    pub changes: Vec<AppliedChange>,
    /// The name of the branch that was made of a worktree, and its commit.
    pub branch: Option<(String, String)>,
}

impl Sandboxes {
    /// The request with its workspace as a directory of the host. Nothing else in it may name one.
    pub(super) fn with_workspace(&self, mut new: NewSandbox) -> Result<NewSandbox, Fault> {
        if let Some(name) = new.spec.host_field() {
            return Err(refuse(
                saggar_domain::Code::InvalidValue,
                format!("{name} refers to files of the host, which sandboxes of a server can't use"),
                "leave it out, and copy the files into the sandbox; or ask the operator for a directory with the setting `workspaces`",
            ));
        }
        match &new.workspace {
            None if new.spec.fs.is_some() => {
                return Err(refuse(
                    saggar_domain::Code::Contradiction,
                    "fs says how a directory of the host is mounted, and none is named".to_owned(),
                    "name one with workspace or directory, or leave fs out",
                ));
            }
            None => return Ok(new),
            Some(AskedWorkspace::Named(name)) => {
                let path = self.settings().workspaces.get(name).cloned();
                let path = path.ok_or_else(|| Fault::NotFound { what: "workspace", id: name.to_string() })?;
                new.spec.workspace = Some(path);
            }
            Some(AskedWorkspace::Directory { path, user }) => {
                // Only the supervisor opens it: a filesystem of that user's could keep this process waiting.
                new.spec.workspace = Some(path.clone());
                new.spec.workspace_user = Some(*user);
            }
        }
        match new.spec.fs {
            None => new.spec.fs = Some(FsMode::Scratch),
            Some(FsMode::Scratch | FsMode::Worktree) => {}
            Some(mode @ (FsMode::ReadOnly | FsMode::WorkspaceWrite)) => {
                return Err(refuse(
                    saggar_domain::Code::InvalidValue,
                    format!("sandboxes of a server can't have a directory of the host in mode {mode}"),
                    "use scratch, or worktree for the top of a git repository; apply the changes when the sandbox has ended",
                ));
            }
        }
        Ok(new)
    }

    /// What an ended sandbox changed.
    pub async fn changes(&self, permit: &Permit) -> Result<KeptChanges, Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_)))?;
        self.on_changes(permit, |_, changes| {
            // The git directory of a worktree is ours; what is in it shows as commits.
            let entries = changes.entries().iter().filter(|entry| !changes.is_of_git(entry));
            Ok(KeptChanges {
                entries: entries.cloned().collect(),
                skipped: changes.skipped().to_vec(),
                branch: changes.branch(),
            })
        })
        .await
    }

    /// Applies them to the host's directory: all, or these paths with everything below them. What is protected, was held back or changed on
    /// the host too is refused, as by `saggar changes apply`. A worktree becomes a branch.
    pub async fn apply_changes(
        &self,
        permit: &Permit,
        caller: Option<HostUser>,
        paths: Vec<String>,
    ) -> Result<AppliedChanges, Fault> {
        permit.check(|action| matches!(action, Action::ChangeSandbox(_)))?;
        self.on_changes(permit, move |data, changes| {
            check_caller(&changes, caller)?;
            check_paths(&changes, &paths)?;
            let workspace = changes.workspace().map_err(hide_path)?;
            if changes.is_of_worktree() {
                let wants = |entry: &Entry| match paths.iter().any(|path| entry.path.is_within(path.as_bytes())) {
                    true => Wanted::ByName,
                    false if paths.is_empty() => Wanted::Together,
                    false => Wanted::No,
                };
                let applied = changes.apply_to_branch(data, &workspace, wants).map_err(Fault::Refused)?;
                let changes = applied.results.into_iter().map(shown).collect();
                return Ok(AppliedChanges { changes, branch: applied.branch });
            }
            let guard = changes.guard(&workspace).map_err(hide_path)?;
            let wants = |entry: &Entry| {
                let is_named =
                    |path: &String| entry.path.as_bytes() == path.as_bytes() && entry.kind != Kind::Directory;
                match paths.iter().find(|path| entry.path.is_within(path.as_bytes())) {
                    Some(path) if is_named(path) => Wanted::ByName,
                    Some(_) => Wanted::Together,
                    None if paths.is_empty() => Wanted::Together,
                    None => Wanted::No,
                }
            };
            let applied = changes.apply(data, &workspace, &guard, wants);
            let applied = applied.map_err(|error| Fault::internal("applying changes", error))?;
            Ok(AppliedChanges { changes: applied.into_iter().map(shown).collect(), branch: None })
        })
        .await
    }

    /// Compares them with the host's directory as it is now: all, or these paths with everything below them.
    pub async fn diff_changes(
        &self,
        permit: &Permit,
        caller: Option<HostUser>,
        paths: Vec<String>,
    ) -> Result<Vec<ChangeDiff>, Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_)))?;
        self.on_changes(permit, move |_, changes| {
            check_caller(&changes, caller)?;
            check_paths(&changes, &paths)?;
            let workspace = changes.workspace().map_err(hide_path)?;
            let is_picked =
                |entry: &&Entry| paths.is_empty() || paths.iter().any(|path| entry.path.is_within(path.as_bytes()));
            let mut left = DIFF_BYTES_MAX;
            let mut unified = Unified::begin();
            let mut compare = |entry: &Entry| -> Result<String, NoDiff> {
                if left == 0 {
                    return Err(NoDiff::Omitted);
                }
                if !Unified::is_of(entry) {
                    return Err(NoDiff::NotAFile);
                }
                let text = unified.of(&changes, &workspace, entry).ok_or(NoDiff::NotText)?;
                let rest = left.checked_sub(text.len());
                left = rest.unwrap_or(0);
                rest.map(|_| text).ok_or(NoDiff::Omitted)
            };
            let picked = changes.entries().iter().filter(|entry| !changes.is_of_git(entry)).filter(is_picked);
            Ok(picked.map(|entry| ChangeDiff { text: compare(entry), entry: entry.clone() }).collect())
        })
        .await
    }

    pub async fn drop_changes(&self, permit: &Permit) -> Result<(), Fault> {
        permit.check(|action| matches!(action, Action::ChangeSandbox(_)))?;
        self.on_changes(permit, |data, changes| {
            changes.drop_all(data).map_err(|error| Fault::internal("dropping changes", error))
        })
        .await
    }

    async fn on_changes<T: Send + 'static>(
        &self,
        permit: &Permit,
        work: impl FnOnce(&saggar_sandbox::DataDirectory, Changes) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let id: SandboxId = permit.sandbox()?.clone();
        let row = self.row_of(permit.project(), &id).await?;
        if !matches!(row.life, Life::Ended { .. }) {
            return Err(Fault::Conflict {
                what: format!("sandbox {id} has not ended, and its changes are kept when it does"),
                help: "end it first".to_owned(),
            });
        }
        let this = self.clone();
        // It takes the ids of the directory's owner, for its own thread.
        let done = tokio::task::spawn_blocking(move || {
            let changes = Changes::open(this.data(), id.as_str());
            let changes =
                changes.map_err(|_| Fault::NotFound { what: "kept changes of sandbox", id: id.to_string() })?;
            work(this.data(), changes)
        });
        done.await.map_err(|error| Fault::internal("working on changes", error))?
    }
}

fn shown(one: saggar_sandbox::Applied) -> AppliedChange {
    AppliedChange {
        path: one.path.to_string(),
        refused: match one.outcome {
            ApplyOutcome::Done => None,
            ApplyOutcome::Refused(why) => Some(why),
        },
    }
}

/// What belongs to a user of the host is compared and applied for that user alone, and for root.
fn check_caller(changes: &Changes, caller: Option<HostUser>) -> Result<(), Fault> {
    let Some(user) = changes.workspace_user() else { return Ok(()) };
    if caller.is_some_and(|caller| caller.is_root() || caller.uid == user.uid) {
        return Ok(());
    }
    Err(Fault::Forbidden {
        what: "the changes are of a directory that belongs to a user of the server's host".to_owned(),
        help: "use the server's Unix socket as that user, or drop them".to_owned(),
    })
}

fn check_paths(changes: &Changes, paths: &[String]) -> Result<(), Fault> {
    let is_there = |path: &String| changes.entries().iter().any(|entry| entry.path.is_within(path.as_bytes()));
    match paths.iter().find(|path| !is_there(path)) {
        None => Ok(()),
        Some(lost) => Err(refuse(
            saggar_domain::Code::InvalidValue,
            format!("{lost:?} is not among the changes: it was applied already, or never changed"),
            "list the changes; paths are relative to the workspace",
        )),
    }
}

/// Clients don't learn where a directory of the host is.
fn hide_path(_: saggar_domain::Problem) -> Fault {
    refuse(
        saggar_domain::Code::InvalidWorkspace,
        "the workspace is not the directory that the sandbox worked on any more".to_owned(),
        "tell the operator, who can see the changes with `saggar changes`; or drop them",
    )
}
