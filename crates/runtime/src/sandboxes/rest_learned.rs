//! What a sandbox rests in, by its row and the store: several processes of a machine may pause and resume the same sandbox, and each knows
//! only what it did itself. Changes nothing on the disk.

use std::sync::Arc;
use std::time::Duration;

use saggar_domain::{SandboxState, SnapshotId, SnapshotRecord};
use saggar_store::{Life, Sandbox};
use saggar_supervisor::control::{Op, Reply};

use super::Sandboxes;
use super::live::Live;
use super::making::Making;
use super::rest::Rest;
use crate::fail_point::pass;
use crate::fault::Fault;
use crate::supervisor::Connection;
use crate::templates::blocking;

/// How often it is tried to get the lock of a sandbox that another process is changing.
const RETRY: Duration = Duration::from_millis(20);

impl Sandboxes {
    /// Waits until no other process of this machine pauses this sandbox, lets it rest or resumes it; none does until the result is dropped.
    pub(super) async fn lock_change(&self, live: &Live) -> Result<Making, Fault> {
        let mut is_first = true;
        loop {
            let tried = self.inner.changers.try_begin(&live.id);
            match tried.map_err(|error| Fault::internal("locking a sandbox", error))? {
                Some(alone) => return Ok(alone),
                None if std::mem::take(&mut is_first) => pass("change/waiting"),
                None => {}
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// The same before a change: afterwards it is known what the sandbox rests in, and that one that isn't alone has a supervisor. The
    /// caller has locked its paused state.
    pub(crate) async fn begin_change(&self, live: &Arc<Live>) -> Result<Making, Fault> {
        let alone = self.lock_change(live).await?;
        self.learn_rest(live).await?;
        if matches!(live.rest(), Some(Rest::Kept(_))) && !self.has_supervisor(live).await {
            // Another process ended it, or died while it did: what is kept is the only copy.
            self.rests(&live.id).await;
        }
        Ok(alone)
    }

    /// Whether its supervisor says that it runs.
    pub(super) async fn is_running(&self, live: &Live) -> bool {
        let answer = Connection::question(&live.socket, Op::Describe).await;
        matches!(answer, Ok(Reply::Described(description)) if description.state == SandboxState::Running)
    }

    /// Whether there is a supervisor that isn't ending. Waits for one that is.
    async fn has_supervisor(&self, live: &Live) -> bool {
        match Connection::question(&live.socket, Op::Describe).await {
            Ok(Reply::Described(description)) if description.state == SandboxState::Ending => {
                // It answers once it has ended.
                let _ = Connection::question(&live.socket, Op::Kill).await;
                false
            }
            Ok(Reply::Described(description)) => {
                live.learn(&description);
                true
            }
            Err(error) if error.is_gone() => false,
            Ok(_) | Err(_) => true,
        }
    }

    /// What is kept of a sandbox, by its row and the store: another process of this machine may have paused or resumed it since this one
    /// looked.
    pub(super) async fn learn_rest(&self, live: &Arc<Live>) -> Result<(), Fault> {
        let row = self.row_of(&live.project, &live.id).await?;
        let kept = self.stored_rest(&row).await?;
        let before = live.rest();
        let is_paused = matches!(row.life, Life::Paused { .. });
        live.set_rest(match (&before, kept) {
            (Some(Rest::Alone(known)), Some(snapshot)) if *known == snapshot => Some(Rest::Alone(snapshot)),
            // Another process had it run and paused it again, or what is kept can't be read now. Then it has not ended.
            (Some(Rest::Alone(known)), kept) if is_paused && !self.has_supervisor(live).await => {
                Some(Rest::Alone(kept.unwrap_or_else(|| known.clone())))
            }
            (_, kept) => kept.map(Rest::Kept),
        });
        if matches!(before, Some(Rest::Alone(_))) && !live.is_alone() {
            // It has a supervisor again, which this process doesn't watch.
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
