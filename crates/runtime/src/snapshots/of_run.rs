//! Snapshots that runs take, to go back to. A run names those that it needs in its row, in the commit of the entry that they belong to; a
//! fork names the one that it began with. What no run names is removed.
//!
//! ```text
//!   taken ──▶ named by its run ──▶ no longer among the newest, and no fork began with it ──▶ removed
//!     └─ never committed: removed when its run goes on without it, or is over
//! ```
//! One that is taken a moment before its entry is committed is named by no run: it is left while its run may still commit it.

use std::collections::{BTreeMap, BTreeSet};

use saggar_domain::{OfRun, ProjectId, RunId, SnapshotId, SnapshotRecord};
use saggar_engine::RunFiles;

use super::TakeSnapshot;
use super::take::Purpose;
use crate::fault::Fault;
use crate::permit::Permit;
use crate::sandboxes::Sandboxes;
use crate::templates::blocking;

/// What the runs of a project need.
#[derive(Debug, Default)]
pub(super) struct Needed {
    snapshots: BTreeSet<SnapshotId>,
    /// Runs that aren't over, each with the step of its newest snapshot.
    open: BTreeMap<RunId, u64>,
}

impl Needed {
    /// Whether a snapshot was taken by a run and is needed by none.
    pub(super) fn is_left_over(&self, record: &SnapshotRecord) -> bool {
        let Some(OfRun { run, step }) = &record.facts.of_run else { return false };
        // A run that has a newer one has committed this one, or gone on without it.
        let may_commit = self.open.get(run).is_some_and(|newest| newest < step);
        !self.snapshots.contains(&record.id) && !may_commit
    }
}

impl Sandboxes {
    /// Takes a snapshot for a step of a run, once: a step that is done again finds the one that it took.
    pub(crate) async fn take_snapshot_of_run(
        &self,
        permit: &Permit,
        id: SnapshotId,
        of_run: OfRun,
    ) -> Result<SnapshotId, Fault> {
        let live = self.changeable(permit).await?;
        match self.find_snapshot(permit.project(), &id).await {
            Ok(found) => return Ok(found.record.id),
            Err(Fault::NotFound { .. }) => {}
            Err(fault) => return Err(fault),
        }
        let this = self.clone();
        let take = TakeSnapshot { of_run: Some(of_run), ..TakeSnapshot::default() };
        // Continues if the worker gives the run up: the next holder finds it.
        let work = tokio::spawn(async move { this.take(&live, id, take, Purpose::Snapshot).await });
        Ok(work.await.map_err(|error| Fault::internal("taking a snapshot", error))??.id)
    }

    /// What the runs of a project need. `None` if no snapshot is a run's.
    pub(super) async fn needed_by_runs(&self, project: &ProjectId) -> Result<Option<Needed>, Fault> {
        let (this, of) = (self.clone(), project.clone());
        let owners = blocking("listing snapshots", move || {
            let all = this.template_store(&of)?.snapshots().map_err(Fault::Refused)?;
            Ok(all.into_iter().filter_map(|record| Some(record.facts.of_run?.run)).collect::<BTreeSet<RunId>>())
        })
        .await?;
        if owners.is_empty() {
            return Ok(None);
        }
        let mut needed = Needed::default();
        for run in owners {
            if self.store().is_run_open(run.clone()).await? {
                needed.open.insert(run, 0);
            }
        }
        for (run, files) in self.files_of_runs(project).await? {
            if let (Some(newest), Some(kept)) = (needed.open.get_mut(&run), files.kept.last()) {
                *newest = kept.step;
            }
            needed.snapshots.extend(files.kept.into_iter().map(|kept| kept.snapshot));
        }
        Ok(Some(needed))
    }

    /// The run that needs a snapshot, if one does.
    pub(super) async fn run_that_needs(&self, project: &ProjectId, id: &SnapshotId) -> Result<Option<RunId>, Fault> {
        let all = self.files_of_runs(project).await?;
        let needs = |files: &RunFiles| files.kept.iter().any(|kept| kept.snapshot == *id);
        Ok(all.into_iter().find(|(_, files)| needs(files)).map(|(run, _)| run))
    }

    async fn files_of_runs(&self, project: &ProjectId) -> Result<Vec<(RunId, RunFiles)>, Fault> {
        let all = self.store().files_of_runs(project.clone()).await?;
        let read = all.into_iter().map(|of| Ok((of.run, of.files.to_value()?)));
        read.collect::<Result<_, serde_json::Error>>().map_err(|error| Fault::internal("reading a run's files", error))
    }
}
