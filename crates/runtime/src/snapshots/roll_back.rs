//! Takes a sandbox back to a snapshot in place: its programs are ended, and it keeps its id, its tokens, its variables and its time.
//!
//! The supervisor does it, and tells it as an event. So if this process dies in the middle, the next one learns from the event what the
//! sandbox was started from.

use std::sync::Arc;

use saggar_domain::{Code, Draft, Problem, SnapshotId, TemplateName};
use saggar_store::Sandbox;
use saggar_supervisor::control::Op;

use super::take::check_awake;
use crate::fail_point::pass;
use crate::fault::Fault;
use crate::permit::Permit;
use crate::sandboxes::{Live, Sandboxes, policy_hash};
use crate::templates::blocking;

impl Sandboxes {
    /// Continues to its end even if the caller is cancelled.
    pub async fn roll_back(&self, permit: &Permit, id: &SnapshotId) -> Result<Sandbox, Fault> {
        let live = self.changeable(permit).await?;
        let (this, id) = (self.clone(), id.clone());
        let work = tokio::spawn(async move { this.roll_back_live(&live, &id).await });
        work.await.map_err(|error| Fault::internal("rolling a sandbox back", error))?
    }

    async fn roll_back_live(&self, live: &Arc<Live>, id: &SnapshotId) -> Result<Sandbox, Fault> {
        // Before the turn, as a pause does that takes a snapshot.
        let paused = live.accounted.lock().await;
        let alone = self.begin_change(live).await?;
        check_awake(live)?;
        let _turn = live.snapshotting.lock().await;
        self.find_snapshot(&live.project, id).await?;
        let before = self.row_of(&live.project, &live.id).await?;
        if before.asked.spec.workspace.is_some() {
            return Err(Fault::Refused(Problem::new(
                Code::UnsupportedCapability,
                "a sandbox with a workspace can't be rolled back: its changes there are kept when it ends, and are in no snapshot",
                "end it, and start another one from the snapshot",
            )));
        }
        if !self.described(live, Op::Describe).await?.has_changes {
            return Err(Fault::Refused(Problem::new(
                Code::UnsupportedCapability,
                format!("sandbox {} can't be rolled back: an earlier version of Saggar made it", live.id),
                "end it, and start another one from the snapshot",
            )));
        }
        // Held until it is done: what is there now is there when the supervisor looks.
        let (this, project, wanted, name) = (self.clone(), live.project.clone(), id.clone(), id.template_name());
        let held = blocking("reading a snapshot", move || this.held_snapshot(&project, &wanted)).await?;
        // The sandbox would be lost if its new network had nobody to decide.
        self.ensure_egress(before.asked.spec.network).await.map_err(Fault::Refused)?;
        // It runs afterwards, with other files than those that a pause has kept.
        self.forget_rest(live).await?;
        pass("rollback/begun");
        let again = Op::BeginAgain { template: name.clone(), template_project: live.project.to_string() };
        self.described(live, again).await?;
        pass("rollback/done");
        drop(held);
        drop(alone);
        drop(paused);
        self.began_again(live, &name).await?;
        // Its network is a new one, which has none of its secrets.
        self.bind_new(&live.id, &live.project, &before.asked.spec.secrets).await?;
        self.row_of(&live.project, &live.id).await
    }

    /// Records what a sandbox was started from, as its supervisor says.
    pub(crate) async fn began_again(&self, live: &Live, template: &TemplateName) -> Result<(), Fault> {
        let row = self.row_of(&live.project, &live.id).await?;
        let spec = Draft { template: Some(template.clone()), ..row.asked.spec };
        let hash = policy_hash(&row.asked.env_names, spec)?;
        self.store().set_template(live.id.clone(), template.clone(), hash).await?;
        live.set_template(template.clone());
        if let Some(id) = SnapshotId::of_template(template) {
            live.set_latest_snapshot(id);
        }
        Ok(())
    }
}
