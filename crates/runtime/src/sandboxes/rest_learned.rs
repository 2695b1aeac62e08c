//! What a sandbox rests in, by its row and the store: several processes of a machine may pause and resume the same sandbox, and each knows
//! only what it did itself. Changes nothing on the disk.

use std::sync::Arc;

use saggar_domain::{SnapshotId, SnapshotRecord};
use saggar_store::{Life, Sandbox};

use super::Sandboxes;
use super::live::Live;
use super::rest::Rest;
use crate::fault::Fault;
use crate::templates::blocking;

impl Sandboxes {
    /// What is kept of a sandbox, by its row and the store: another process of this machine may have paused or resumed it since this one
    /// looked.
    pub(super) async fn learn_rest(&self, live: &Arc<Live>) -> Result<(), Fault> {
        let row = self.row_of(&live.project, &live.id).await?;
        let kept = self.stored_rest(&row).await?;
        let before = live.rest();
        live.set_rest(match (&before, kept) {
            (Some(Rest::Alone(_)), Some(snapshot)) => Some(Rest::Alone(snapshot)),
            (Some(Rest::Kept(_)) | None, Some(snapshot)) => Some(Rest::Kept(snapshot)),
            (_, None) => None,
        });
        if matches!(before, Some(Rest::Alone(_))) && live.rest().is_none() {
            // It has a supervisor again, which nobody here watches.
            self.watch(Arc::clone(live), self.store().last_event(live.id.clone()).await?.unwrap_or(0));
        }
        Ok(())
    }

    /// The snapshot that a sandbox rests in, if it is paused and has one.
    pub(super) async fn stored_rest(&self, row: &Sandbox) -> Result<Option<SnapshotId>, Fault> {
        if !matches!(row.life, Life::Paused { .. }) {
            return Ok(None);
        }
        let (this, project, id) = (self.clone(), row.asked.project.clone(), row.asked.id.clone());
        blocking("reading snapshots", move || {
            let all = this.template_store(&project)?.snapshots().map_err(Fault::Refused)?;
            let is_its =
                |record: &&SnapshotRecord| record.facts.rest.is_some() && record.facts.sandbox.as_ref() == Some(&id);
            Ok(all.iter().rev().find(is_its).map(|record| record.id.clone()))
        })
        .await
    }
}
