//! Bounds the number of snapshots of a project, those that are being taken included.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use saggar_domain::{ProjectId, SnapshotId};
use saggar_image::Store;

use crate::fault::Fault;
use crate::sandboxes::Sandboxes;

/// Snapshots that are being taken.
pub(crate) type Taking = Mutex<BTreeMap<ProjectId, BTreeSet<SnapshotId>>>;

/// The place of a snapshot that is being taken.
pub(super) struct Place<'a> {
    taking: &'a Taking,
    project: ProjectId,
    id: SnapshotId,
}

impl Sandboxes {
    /// Snapshots for forks count too: they take room as others do.
    pub(super) fn take_place(&self, store: &Store, project: &ProjectId, id: &SnapshotId) -> Result<Place<'_>, Fault> {
        let most = self.settings().snapshots.count_max;
        let mut all = self.taking().lock().unwrap_or_else(PoisonError::into_inner);
        let taking = all.entry(project.clone()).or_default();
        let counted = store.count_snapshots(taking).map_err(Fault::Refused);
        let outcome = counted.and_then(|count| match count < most {
            true => Ok(()),
            false => Err(Fault::Capacity {
                what: format!("the project has {count} snapshots, and {most} are allowed"),
                retry_after: Duration::from_secs(1),
            }),
        });
        if outcome.is_ok() {
            taking.insert(id.clone());
        }
        if taking.is_empty() {
            all.remove(project);
        }
        outcome.map(|()| Place { taking: self.taking(), project: project.clone(), id: id.clone() })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut all = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taking) = all.get_mut(&self.project) {
            taking.remove(&self.id);
            if taking.is_empty() {
                all.remove(&self.project);
            }
        }
    }
}
