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
use saggar_store::ReuseNeed;

use super::TakeSnapshot;
use super::take::Purpose;
use crate::fault::Fault;
use crate::permit::Permit;
use crate::sandboxes::{Sandboxes, now};
use crate::templates::blocking;

/// What the runs of a project need.
#[derive(Debug, Default)]
pub(super) struct Needed {
    snapshots: BTreeSet<SnapshotId>,
    /// The runs that had taken one. Each that isn't over, with the step of its newest; `None` for one that is.
    owners: BTreeMap<RunId, Option<u64>>,
}

impl Needed {
    /// Whether a snapshot was taken by a run and is needed by none.
    pub(super) fn is_left_over(&self, record: &SnapshotRecord) -> bool {
        record.facts.of_run.as_ref().is_some_and(|of_run| !self.needs(&record.id, of_run))
    }

    /// Adds what is left for later runs, and what open runs began with.
    pub(super) fn add(&mut self, reused: Vec<ReuseNeed>) {
        self.snapshots.extend(reused.into_iter().map(|need| need.snapshot));
    }

    fn needs(&self, snapshot: &SnapshotId, OfRun { run, step }: &OfRun) -> bool {
        let may_commit = match self.owners.get(run) {
            // It took its first one after this was read.
            None => true,
            Some(None) => false,
            // A run that has a newer one has committed this one, or gone on without it.
            Some(Some(newest)) => newest < step,
        };
        may_commit || self.snapshots.contains(snapshot)
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
        // A client may have paused it without its memory. The run needs it again in any case.
        self.awaken(&live).await?;
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
            let is_open = self.store().is_run_open(run.clone()).await?;
            needed.owners.insert(run, is_open.then_some(0));
        }
        for (run, files) in self.files_of_runs(project).await? {
            if let (Some(Some(newest)), Some(kept)) = (needed.owners.get_mut(&run), files.kept.last()) {
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
        if let Some((run, _)) = all.into_iter().find(|(_, files)| needs(files)) {
            return Ok(Some(run));
        }
        let reused = self.store().needed_for_reuse(project.clone(), now()).await?;
        Ok(reused.into_iter().find(|need| need.snapshot == *id).and_then(|need| need.by))
    }

    async fn files_of_runs(&self, project: &ProjectId) -> Result<Vec<(RunId, RunFiles)>, Fault> {
        let all = self.store().files_of_runs(project.clone()).await?;
        let read = all.into_iter().map(|of| Ok((of.run, of.files.to_value()?)));
        read.collect::<Result<_, serde_json::Error>>().map_err(|error| Fault::internal("reading a run's files", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_kept_while_its_run_may_still_commit_it() {
        let (open, over, new) = (RunId::from_random([1; 16]), RunId::from_random([2; 16]), RunId::from_random([3; 16]));
        let snap = |number: u8| SnapshotId::from_random([number; 16]);
        let needed =
            Needed { snapshots: [snap(1)].into(), owners: [(open.clone(), Some(5)), (over.clone(), None)].into() };
        let needs = |number, run: &RunId, step| needed.needs(&snap(number), &OfRun { run: run.clone(), step });
        assert!(needs(1, &over, 3), "it is named");
        assert!(needs(2, &open, 6), "its entry may come");
        assert!(!needs(2, &open, 4), "the run has a newer one, and doesn't name it");
        assert!(!needs(2, &over, 6), "no entry comes");
        assert!(needs(2, &new, 1), "the run had none when the rows were read");
    }
}
