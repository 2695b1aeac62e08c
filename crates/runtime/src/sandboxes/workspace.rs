//! Directories of the host for sandboxes of a server: named by the operator, mounted copy-on-write, and changed only when somebody
//! applies what a sandbox did.
//!
//! No client names a path: the setting `workspaces` says which directories there are. Every project may use each of them.

use saggar_domain::{FsMode, HostPath, SandboxId, WorkspaceName};
use saggar_sandbox::{ApplyOutcome, Changes, Entry, Kind, Skipped, Wanted};
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
}

/// One change that was to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedChange {
    pub path: String,
    /// Why it was not applied. It is still kept then.
    pub refused: Option<String>,
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
        let Some(name) = &new.workspace else { return Ok(new) };
        let path = self.settings().workspaces.get(name).cloned();
        let path = path.ok_or_else(|| Fault::NotFound { what: "workspace", id: name.to_string() })?;
        new.spec.workspace = Some(path);
        new.spec.fs = Some(FsMode::Scratch);
        Ok(new)
    }

    /// What an ended sandbox changed.
    pub async fn changes(&self, permit: &Permit) -> Result<KeptChanges, Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_)))?;
        self.on_changes(permit, |_, changes| {
            Ok(KeptChanges { entries: changes.entries().to_vec(), skipped: changes.skipped().to_vec() })
        })
        .await
    }

    /// Applies them to the host's directory: all, or these paths with everything below them. What is protected, was held back or changed on
    /// the host too is refused, as by `saggar changes apply`.
    pub async fn apply_changes(&self, permit: &Permit, paths: Vec<String>) -> Result<Vec<AppliedChange>, Fault> {
        permit.check(|action| matches!(action, Action::ChangeSandbox(_)))?;
        self.on_changes(permit, move |data, changes| {
            let is_there = |path: &String| changes.entries().iter().any(|entry| entry.path.is_within(path.as_bytes()));
            if let Some(lost) = paths.iter().find(|path| !is_there(path)) {
                return Err(refuse(
                    saggar_domain::Code::InvalidValue,
                    format!("{lost:?} is not among the changes: it was applied already, or never changed"),
                    "list the changes; paths are relative to the workspace",
                ));
            }
            let workspace = changes.workspace().map_err(hide_path)?;
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
            let shown = |one: saggar_sandbox::Applied| AppliedChange {
                path: one.path.to_string(),
                refused: match one.outcome {
                    ApplyOutcome::Done => None,
                    ApplyOutcome::Refused(why) => Some(why),
                },
            };
            Ok(applied.into_iter().map(shown).collect())
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

/// Clients don't learn where a directory of the host is.
fn hide_path(_: saggar_domain::Problem) -> Fault {
    refuse(
        saggar_domain::Code::InvalidWorkspace,
        "the workspace is not the directory that the sandbox worked on any more".to_owned(),
        "tell the operator, who can see the changes with `saggar changes`; or drop them",
    )
}
