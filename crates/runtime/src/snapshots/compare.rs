//! Compares two snapshots of a project.

use std::sync::Arc;

use saggar_domain::{Code, Problem, ProjectId, SnapshotId};
use saggar_image::{DiffLimits, StackDiff, diff};
use saggar_sandbox::{HeldTemplate, Templates};

use super::SNAPSHOTS;
use super::keep::no_snapshot;
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::Sandboxes;
use crate::templates::blocking;

impl Sandboxes {
    /// What changed from one to the other.
    pub async fn diff_snapshots(
        &self,
        permit: &Permit,
        from: &SnapshotId,
        to: &SnapshotId,
    ) -> Result<StackDiff, Fault> {
        permit.check(|action| *action == Action::Manage(SNAPSHOTS))?;
        let project = permit.project();
        // Expired ones are as absent as others.
        self.find_snapshot(project, from).await?;
        self.find_snapshot(project, to).await?;
        let (this, project, from, to) = (self.clone(), project.clone(), from.clone(), to.clone());
        // Dropped with this call. The thread that compares can't be cancelled, and two large trees that are the same take long.
        let asks = Arc::new(());
        let waiting = Arc::downgrade(&asks);
        blocking("comparing snapshots", move || {
            let (before, after) = (this.held_snapshot(&project, &from)?, this.held_snapshot(&project, &to)?);
            let go_on = || match waiting.strong_count() {
                0 => Err(Problem::new(Code::TooMany, "nobody waits for the comparison any more", "ask again")),
                _ => Ok(()),
            };
            diff(&before, &after, DiffLimits::default(), &go_on).map_err(Fault::Refused)
        })
        .await
    }

    /// Keeps a snapshot's files until the result is dropped.
    pub(super) fn held_snapshot(&self, project: &ProjectId, id: &SnapshotId) -> Result<HeldTemplate, Fault> {
        Templates::new(self.data(), project.as_str()).find(&id.template_name()).map_err(|problem| match problem.code {
            Code::UnsupportedCapability => no_snapshot(id),
            _ => Fault::Refused(problem),
        })
    }
}
