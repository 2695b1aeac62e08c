//! Lists, reads and removes snapshots, and removes those whose time is over.

use saggar_domain::{ProjectId, SandboxId, SnapshotId, SnapshotRecord, TemplateName, Timestamp};
use saggar_image::Rest;
use saggar_store::Life;

use super::of_run::Needed;
use super::{SNAPSHOTS, SnapshotView};
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::{Sandboxes, now};
use crate::templates::{TemplateRest, blocking};

/// Which snapshots to list. Fields that are `None` match all.
#[derive(Clone, Debug, Default)]
pub struct SnapshotQuery {
    pub sandbox: Option<SandboxId>,
    pub name: Option<TemplateName>,
    /// Each must be there with this value.
    pub labels: Vec<(String, String)>,
}

impl SnapshotQuery {
    fn matches(&self, record: &SnapshotRecord) -> bool {
        let facts = &record.facts;
        let has = |(key, value): &(String, String)| facts.labels.entries().get(key) == Some(value);
        facts.is_listed()
            && self.sandbox.as_ref().is_none_or(|sandbox| facts.sandbox.as_ref() == Some(sandbox))
            && self.name.as_ref().is_none_or(|name| facts.name.as_ref() == Some(name))
            && self.labels.iter().all(has)
    }
}

impl Sandboxes {
    /// Oldest first.
    pub async fn snapshots(&self, permit: &Permit, query: SnapshotQuery) -> Result<Vec<SnapshotView>, Fault> {
        permit.check(|action| *action == Action::Manage(SNAPSHOTS))?;
        let (this, project) = (self.clone(), permit.project().clone());
        blocking("listing snapshots", move || {
            let all = this.template_store(&project)?.snapshots().map_err(Fault::Refused)?;
            let at = now();
            let shown = all.into_iter().filter(|record| query.matches(record) && !is_expired(record, at));
            Ok(shown.map(|record| this.viewed(&project, record)).collect())
        })
        .await
    }

    pub async fn snapshot(&self, permit: &Permit, id: &SnapshotId) -> Result<SnapshotView, Fault> {
        permit.check(|action| *action == Action::Manage(SNAPSHOTS))?;
        self.find_snapshot(permit.project(), id).await
    }

    pub(super) async fn find_snapshot(&self, project: &ProjectId, id: &SnapshotId) -> Result<SnapshotView, Fault> {
        let (this, project, id) = (self.clone(), project.clone(), id.clone());
        blocking("reading a snapshot", move || {
            let found = this.template_store(&project)?.snapshot(&id).map_err(Fault::Refused)?;
            let found = found.filter(|record| !is_expired(record, now()));
            found.map(|record| this.viewed(&project, record)).ok_or_else(|| no_snapshot(&id))
        })
        .await
    }

    /// Removes a snapshot. What sandboxes, templates and other snapshots use of it stays for them.
    pub async fn remove_snapshot(&self, permit: &Permit, id: &SnapshotId) -> Result<TemplateRest, Fault> {
        permit.check(|action| *action == Action::Manage(SNAPSHOTS))?;
        if let Some(run) = self.run_that_needs(permit.project(), id).await? {
            return Err(Fault::Conflict {
                what: format!("run {run} needs snapshot {id}: it can go back to it"),
                help: format!("it is removed with the run: saggar runs rm {run}"),
            });
        }
        let (this, project, id) = (self.clone(), permit.project().clone(), id.clone());
        // Continues if the client disconnects.
        let work = tokio::spawn(async move {
            blocking("removing a snapshot", move || {
                let store = this.template_store(&project)?;
                let removed = store.remove_snapshot(&id).map_err(Fault::Refused)?.ok_or_else(|| no_snapshot(&id))?;
                this.jobs().note_leftovers(project.clone());
                Ok(match removed.rest {
                    Rest::Named => TemplateRest::Named,
                    Rest::InUse => TemplateRest::InUse,
                    Rest::Unknown | Rest::Gone(_) => TemplateRest::Gone,
                })
            })
            .await
        });
        work.await.map_err(|error| Fault::internal("removing a snapshot", error))?
    }

    /// Removes snapshots whose time is over, and those for forks that have ended.
    pub(crate) async fn sweep_snapshots(&self) {
        let this = self.clone();
        let projects = blocking("listing projects", move || Ok(this.projects_with_templates())).await;
        for project in projects.unwrap_or_default() {
            // What is wrong with one project must not keep another one's.
            if let Err(fault) = self.sweep_project(&project).await {
                tracing::warn!(%project, error = %fault, "old snapshots can't be removed");
            }
        }
    }

    async fn sweep_project(&self, project: &ProjectId) -> Result<(), Fault> {
        // Read before the snapshots are listed: one that is taken meanwhile is named by no run yet.
        let mut needed = self.needed_by_runs(project).await?;
        let (this, of) = (self.clone(), project.clone());
        let listed = blocking("listing snapshots", move || this.kept_snapshots_of(&of)).await?;
        if let Some(needed) = &mut needed {
            // Read after the snapshots are listed: what is left for later runs is named before it is taken.
            needed.add(self.store().needed_for_reuse(project.clone(), now()).await?);
        }
        let listed = self.without_rests(listed).await?;
        let (this, project) = (self.clone(), project.clone());
        blocking("removing old snapshots", move || this.sweep_snapshots_of(&project, listed, needed.as_ref())).await
    }

    /// Without those that paused sandboxes may rest in, also of other processes of this machine.
    async fn without_rests(&self, listed: Vec<SnapshotRecord>) -> Result<Vec<SnapshotRecord>, Fault> {
        let mut others = Vec::new();
        for record in listed {
            let rests = match record.facts.sandbox.clone().filter(|_| record.facts.rest.is_some()) {
                Some(sandbox) => self.store().sandbox_of_any(sandbox).await?,
                None => None,
            };
            if !rests.is_some_and(|row| matches!(row.life, Life::Paused { .. })) {
                others.push(record);
            }
        }
        Ok(others)
    }

    /// All of a project, without those that were lost.
    fn kept_snapshots_of(&self, project: &ProjectId) -> Result<Vec<SnapshotRecord>, Fault> {
        let store = self.template_store(project)?;
        let lost = store.remove_lost_snapshots().map_err(Fault::Refused)?;
        for id in &lost {
            tracing::warn!(%project, snapshot = %id, "a snapshot was lost when the host lost power, and is removed");
        }
        if !lost.is_empty() {
            self.jobs().note_leftovers(project.clone());
        }
        store.snapshots().map_err(Fault::Refused)
    }

    fn sweep_snapshots_of(
        &self,
        project: &ProjectId,
        listed: Vec<SnapshotRecord>,
        needed: Option<&Needed>,
    ) -> Result<(), Fault> {
        let store = self.template_store(project)?;
        for record in listed {
            let is_unused = !record.facts.is_listed() && !self.is_forking(&record.id) && !self.is_rest(&record);
            let is_unused = is_unused && self.users_of(project, &record.id).is_empty();
            let is_left_over = needed.is_some_and(|needed| needed.is_left_over(&record));
            if !is_unused && !is_left_over && !is_expired(&record, now()) {
                continue;
            }
            match store.remove_snapshot(&record.id) {
                Ok(_) => self.jobs().note_leftovers(project.clone()),
                Err(problem) => {
                    tracing::warn!(%project, snapshot = %record.id, error = %problem, "an old snapshot can't be removed");
                }
            }
        }
        Ok(())
    }

    fn viewed(&self, project: &ProjectId, record: SnapshotRecord) -> SnapshotView {
        let used_by = self.users_of(project, &record.id);
        SnapshotView { record, used_by }
    }

    /// The live sandboxes that were started from a snapshot.
    pub(super) fn users_of(&self, project: &ProjectId, id: &SnapshotId) -> Vec<SandboxId> {
        let name = id.template_name();
        let mut users = self.live_from(project, &name);
        users.sort();
        users
    }
}

pub(super) fn is_expired(record: &SnapshotRecord, at: Timestamp) -> bool {
    record.facts.expires_at.is_some_and(|end| at >= end)
}

pub(super) fn no_snapshot(id: &SnapshotId) -> Fault {
    Fault::NotFound { what: "snapshot", id: id.to_string() }
}
