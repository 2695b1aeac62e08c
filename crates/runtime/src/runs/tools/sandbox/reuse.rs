//! Files that runs of an agent leave for one another: `sandbox.reuse`.
//!
//! A run whose agent says so starts its sandbox with the files that an earlier run has left, and leaves its own when it has completed.
//! What is handed on is a snapshot and never a sandbox: each run has a sandbox with an id, a network, tokens and placeholders of its
//! own, so nothing of an earlier run's processes or rights is in it. The store hands each snapshot to one run; see its module `reuse`.
//!
//! INVARIANT: a run leaves its files only if it has completed, was never rolled back, is no fork, and had one sandbox all the time.

use std::time::Duration;

use saggar_domain::{OfRun, Reuse, SnapshotId, Timeout};
use saggar_store::{HandedOn, ReuseKey, Taken};
use tokio::time::{Instant, sleep};

use super::{LOOK_EVERY, MAKING_MAX, RunSandbox};
use crate::fail_point::pass;
use crate::fault::Fault;
use crate::permit::Action;
use crate::runs::effects::Over;
use crate::sandboxes::{now, random};

/// How long an unfinished snapshot stays at least after its process died: the next holder of the run may still finish it.
const LEAVING_MIN: Duration = Duration::from_secs(600);

impl RunSandbox {
    /// How long its files would wait for a later run, and what that run must have in common with it.
    fn reuse(&self) -> Option<(Timeout, ReuseKey)> {
        let agent = &self.about.agent;
        // What is changed in a directory of the host is in no snapshot.
        let (Reuse::For(time), None) = (agent.sandbox.reuse, self.workspace()) else { return None };
        let mut sandbox = agent.sandbox.clone();
        sandbox.reuse = Reuse::Never;
        let what = serde_json::to_vec(&(&agent.name, &sandbox)).expect("our own types have only text keys");
        Some((time, ReuseKey::of(&what)))
    }

    pub(super) fn is_reused(&self) -> bool {
        self.reuse().is_some()
    }

    /// The files of an earlier run that its sandbox starts with. A run takes some once: before its first sandbox.
    pub(super) async fn handed_on(&self) -> Result<Option<HandedOn>, Fault> {
        let Some((_, key)) = self.reuse() else { return Ok(None) };
        let (store, run) = (self.sandboxes.store(), &self.about.run);
        if self.about.generation > 0 || self.lost().is_some() {
            return Ok(store.files_begun_with(run.clone()).await?);
        }
        let begun = Instant::now();
        loop {
            let taken = store.take_files(self.about.project.clone(), run.clone(), key, now()).await?;
            pass("reuse/taken");
            match taken {
                Taken::Files(files) => return Ok(Some(files)),
                Taken::Nothing => return Ok(None),
                // A client starts a run when it sees the end of another one, which is a moment before its files are kept.
                Taken::Soon if begun.elapsed() < MAKING_MAX => sleep(LOOK_EVERY).await,
                Taken::Soon => {
                    store.take_no_files(run.clone(), key).await?;
                    return Ok(None);
                }
            }
        }
    }

    /// The files that the run took are gone: it begins with none.
    pub(super) async fn begins_with_nothing(&self) -> Result<(), Fault> {
        Ok(self.sandboxes.store().begin_with_nothing(self.about.run.clone()).await?)
    }

    /// Its sandbox was lost, so its files can't be trusted: it leaves none.
    pub(super) async fn leaves_nothing(&self) -> Result<(), Fault> {
        match self.reuse() {
            Some(_) => Ok(self.sandboxes.store().leave_nothing(self.about.run.clone()).await?),
            None => Ok(()),
        }
    }

    /// Keeps the files of a run that has completed for the next one. If that fails, the next one begins without them.
    pub(super) async fn leave_files(&self, over: Over) -> Result<(), Fault> {
        let (Some((time, _)), Over::Completed { last_step }, 0) = (self.reuse(), over, self.about.generation) else {
            return Ok(());
        };
        let (store, run) = (self.sandboxes.store(), &self.about.run);
        let asked = SnapshotId::from_random(random());
        let until = now().after(time.duration().max(LEAVING_MIN));
        let Some(snapshot) = store.begin_leaving(run.clone(), asked, until).await? else { return Ok(()) };
        pass("reuse/leaving");
        match self.keep_files(snapshot, last_step).await {
            Ok(()) => {
                pass("reuse/kept");
                store.leave_files(run.clone(), now().after(time.duration())).await?;
                pass("reuse/left");
            }
            Err(fault) => {
                tracing::warn!(run_id = %run, error = %fault, "keeping a run's files for the next one failed");
                store.leave_nothing(run.clone()).await?;
            }
        }
        Ok(())
    }

    async fn keep_files(&self, snapshot: SnapshotId, step: u64) -> Result<(), Fault> {
        let id = match self.id() {
            Some(id) => Some(id),
            None => self.made(self.about.generation, None).await?,
        };
        let id = id.ok_or_else(|| Fault::no_sandbox("of the run"))?;
        let permit = self.permit(Action::ChangeSandbox(id))?;
        let of_run = OfRun { run: self.about.run.clone(), step };
        self.sandboxes.take_snapshot_of_run(&permit, snapshot, of_run).await.map(drop)
    }
}
