//! Takes a snapshot: everything that can be refused is refused first, then the sandbox stands still while what it changed is copied, and the
//! rest is done while it goes on.
//!
//! Of one sandbox, one snapshot is taken after the other.

use std::sync::Arc;

use saggar_domain::{Code, Problem, SnapshotFacts, SnapshotId, SnapshotRecord};
use saggar_image::{Limits, NewSnapshot, Subject};
use saggar_sandbox::Templates;
use saggar_supervisor::control::{BasedOn, Op};

use super::still::Still;
use super::{SnapshotView, TakeSnapshot};
use crate::fail_point::pass;
use crate::fault::Fault;
use crate::permit::Permit;
use crate::sandboxes::{Live, Sandboxes, now, random};
use crate::templates::blocking;

/// For whom a snapshot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Snapshot,
    /// For forks alone: it goes with the last of them.
    Forks,
    /// For the sandbox itself, which is paused.
    Rest,
}

impl Sandboxes {
    /// Takes a snapshot of a running or paused sandbox, whose programs go on. Continues to its end even if the caller is cancelled.
    pub async fn take_snapshot(&self, permit: &Permit, take: TakeSnapshot) -> Result<SnapshotView, Fault> {
        let live = self.changeable(permit).await?;
        let this = self.clone();
        let work =
            tokio::spawn(async move { this.take(&live, Self::new_snapshot_id(), take, Purpose::Snapshot).await });
        let record = work.await.map_err(|error| Fault::internal("taking a snapshot", error))??;
        Ok(SnapshotView { record, used_by: Vec::new() })
    }

    pub(crate) fn new_snapshot_id() -> SnapshotId {
        SnapshotId::from_random(random())
    }

    pub(crate) async fn take(
        &self,
        live: &Arc<Live>,
        id: SnapshotId,
        take: TakeSnapshot,
        purpose: Purpose,
    ) -> Result<SnapshotRecord, Fault> {
        check_awake(live)?;
        let _turn = live.snapshotting.lock().await;
        let description = self.described(live, Op::Describe).await?;
        if !description.has_changes {
            return Err(Fault::Refused(Problem::new(
                Code::UnsupportedCapability,
                format!("the files of sandbox {} can't be read: an earlier version of Saggar made it", live.id),
                "create a new sandbox",
            )));
        }
        let rest = match purpose {
            Purpose::Snapshot | Purpose::Forks => None,
            Purpose::Rest => Some(self.resting(live, &id).await?),
        };
        let created_at = now();
        let facts = SnapshotFacts {
            name: take.name,
            sandbox: Some(live.id.clone()),
            parent: self.parent_of(live).await?,
            labels: take.labels,
            created_at,
            expires_at: take.keep_for.map(|span| created_at.after(span)),
            frozen_us: 0,
            bytes: 0,
            entries: 0,
            is_for_forks: purpose == Purpose::Forks,
            of_run: take.of_run,
            rest,
        };
        let (this, taken_of) = (self.clone(), Arc::clone(live));
        let write = move || this.write_snapshot(&taken_of, id, description.based_on, facts);
        let record = blocking("taking a snapshot", write).await?;
        if purpose == Purpose::Snapshot {
            live.set_latest_snapshot(record.id.clone());
        }
        Ok(record)
    }

    fn write_snapshot(
        &self,
        live: &Live,
        id: SnapshotId,
        based_on: Option<BasedOn>,
        facts: SnapshotFacts,
    ) -> Result<SnapshotRecord, Fault> {
        let store = self.template_store(&live.project)?;
        let limits = self.settings().snapshots;
        let _place = self.take_place(&store, &live.project, &id)?;
        let base = match based_on {
            None => None,
            Some(BasedOn { id, project }) => {
                let held = Templates::new(self.data(), &project).find_id(&id).map_err(Fault::Refused)?;
                let lost = || {
                    Fault::Refused(Problem::new(
                        Code::DataDirectory,
                        format!("the template that sandbox {} was started from is gone", live.id),
                        "tell the operator: `saggar template check` lists all damage",
                    ))
                };
                Some(held.ok_or_else(lost)?)
            }
        };
        pass("snapshot/begun");
        let still = std::cell::RefCell::new(None::<Still>);
        let mut stop = || {
            let (begun, changes) = Still::begin(&live.socket)?;
            still.replace(Some(begun));
            Ok(changes)
        };
        let is_read = std::cell::Cell::new(false);
        let mut resume = || {
            is_read.set(true);
            still.take().map_or(Ok(std::time::Duration::ZERO), Still::go_on)
        };
        // A sandbox that ends while it is read ends this as well. What was read is complete, whatever becomes of the sandbox.
        let go_on = || match live.ended.borrow().is_some() && !is_read.get() {
            true => {
                Err(Problem::new(Code::SandboxEnded, "the sandbox ended while its files were read", "take one earlier"))
            }
            false => still.borrow().as_ref().map_or(Ok(()), Still::check_time),
        };
        let limits = Limits { bytes_max: limits.bytes_max.bytes(), ..Limits::default() };
        let new = NewSnapshot { id, facts, base, limits };
        let taken = store.take_snapshot(new, Subject { stop: &mut stop, resume: &mut resume }, &go_on);
        taken.map_err(|problem| match problem.code {
            Code::SandboxEnded => Fault::Ended { id: live.id.clone(), reason: *live.ended.borrow() },
            _ => Fault::Refused(problem),
        })
    }

    /// The snapshot that the sandbox's files were last the same as.
    async fn parent_of(&self, live: &Arc<Live>) -> Result<Option<SnapshotId>, Fault> {
        let (this, live) = (self.clone(), Arc::clone(live));
        blocking("reading snapshots", move || {
            if let Some(known) = live.latest_snapshot() {
                return Ok(Some(known));
            }
            // This process has taken none. One before it may have.
            let all = this.template_store(&live.project)?.snapshots().map_err(Fault::Refused)?;
            let visible = |record: &&SnapshotRecord| record.facts.is_listed();
            let is_own = |record: &&SnapshotRecord| record.facts.sandbox.as_ref() == Some(&live.id);
            let own = all.iter().rev().filter(visible).find(is_own).map(|record| record.id.clone());
            let template = SnapshotId::of_template(&live.template());
            // A fork continues what its parent was.
            let before = |id: SnapshotId| match all.iter().find(|record| record.id == id) {
                Some(record) if !record.facts.is_listed() => record.facts.parent.clone(),
                Some(_) | None => Some(id),
            };
            let parent = own.or_else(|| template.and_then(before));
            if let Some(parent) = &parent {
                live.set_latest_snapshot(parent.clone());
            }
            Ok(parent)
        })
        .await
    }
}

/// A sandbox of which only its files are left has to be resumed first.
pub(super) fn check_awake(live: &Live) -> Result<(), Fault> {
    if live.is_alone() { Err(Fault::Paused { id: live.id.clone() }) } else { Ok(()) }
}
