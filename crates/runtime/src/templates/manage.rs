//! What a project does with its templates: list, show, name, remove.

use std::time::Duration;

use saggar_domain::template::{LayerRecord, Manifest, TemplateId};
use saggar_domain::{Problem, ProjectId, SnapshotId, TemplateName, Timestamp};
use saggar_image::{Rest, Store};
use saggar_sandbox::{LOCAL_PROJECT, Templates};

use crate::fault::Fault;
use crate::permit::{Action, Kind, Permit};
use crate::sandboxes::{Sandboxes, now};

/// Templates, as permits name them.
pub const TEMPLATES: Kind = Kind::new("templates");

/// How often, and how far apart, it is looked whether a supervisor that ends has let go of its template.
const ENDING_ROUNDS: u32 = 25;
const ENDING_PAUSE: Duration = Duration::from_millis(20);

/// A name and the template that it leads to.
#[derive(Clone, Debug)]
pub struct TemplateView {
    pub name: TemplateName,
    pub id: TemplateId,
    /// When the name was last set.
    pub set_at: Timestamp,
    /// Whether it is the operator's, published to all projects.
    pub is_public: bool,
    /// `None` if the template is damaged.
    pub contents: Option<TemplateContents>,
}

#[derive(Clone, Debug)]
pub struct TemplateContents {
    pub manifest: Manifest,
    /// The first is the bottom.
    pub layers: Vec<LayerRecord>,
}

/// What a removal did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedTemplate {
    /// What the name led to; `None` if that couldn't be read.
    pub id: Option<TemplateId>,
    pub rest: TemplateRest,
}

/// What became of the template that a removed name led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateRest {
    /// Other names lead to it.
    Named,
    /// A live sandbox uses it. It is removed after that.
    InUse,
    Gone,
}

impl Sandboxes {
    /// The project's templates and the published ones, by name.
    pub async fn templates(&self, permit: &Permit) -> Result<Vec<TemplateView>, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        let (this, project) = (self.clone(), permit.project().clone());
        blocking("listing templates", move || this.list_templates(&project)).await
    }

    /// One template; its own, or a published one.
    pub async fn template(&self, permit: &Permit, name: &TemplateName) -> Result<TemplateView, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        let (this, project, name) = (self.clone(), permit.project().clone(), name.clone());
        blocking("reading a template", move || this.find_template(&project, &name)).await
    }

    /// Makes `name` lead to the template of `from`, in the project.
    pub async fn tag_template(
        &self,
        permit: &Permit,
        from: &TemplateName,
        name: &TemplateName,
    ) -> Result<TemplateView, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        let (this, project, from, name) = (self.clone(), permit.project().clone(), from.clone(), name.clone());
        let view = {
            let this = this.clone();
            blocking("naming a template", move || {
                let templates = Templates::new(this.data(), project.as_str());
                // Published templates belong to the operator: another name for one would be out of the operator's hands.
                if templates.name(&from).map_err(Fault::Refused)?.is_none() {
                    return Err(no_template(&from));
                }
                let store = this.template_store(&project)?;
                let tagged = store.tag(&from, &name, now()).map_err(Fault::Refused)?;
                if tagged.replaced.is_some() {
                    this.jobs().note_leftovers(project.clone());
                }
                this.find_template(&project, &name)
            })
            .await?
        };
        this.drop_stale_pools().await;
        Ok(view)
    }

    /// Removes a name of the project, and with its last name the template. Sandboxes that use it keep it.
    pub async fn remove_template(&self, permit: &Permit, name: &TemplateName) -> Result<RemovedTemplate, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        let (this, project, name) = (self.clone(), permit.project().clone(), name.clone());
        // Continues if the client disconnects.
        let work = tokio::spawn(async move {
            let removed = {
                let (this, project, name) = (this.clone(), project.clone(), name.clone());
                blocking("removing a template", move || {
                    if Templates::new(this.data(), project.as_str()).name(&name).map_err(Fault::Refused)?.is_none() {
                        return Err(no_template(&name));
                    }
                    this.template_store(&project)?.remove(&name).map_err(Fault::Refused)
                })
                .await?
            };
            let id = removed.id;
            match removed.rest {
                Rest::Named => Ok(RemovedTemplate { id, rest: TemplateRest::Named }),
                Rest::Unknown | Rest::Gone(_) => Ok(RemovedTemplate { id, rest: TemplateRest::Gone }),
                Rest::InUse => {
                    // Perhaps only by sandboxes that are kept ready, which nobody can ask for any more.
                    this.drop_stale_pools().await;
                    this.jobs().note_leftovers(project.clone());
                    let mut rounds = if this.is_template_live(&project, &name) { 1 } else { ENDING_ROUNDS };
                    // A supervisor holds its template for a moment longer than its sandbox.
                    while !this.collect_templates(&project).await? {
                        rounds -= 1;
                        if rounds == 0 {
                            return Ok(RemovedTemplate { id, rest: TemplateRest::InUse });
                        }
                        tokio::time::sleep(ENDING_PAUSE).await;
                    }
                    Ok(RemovedTemplate { id, rest: TemplateRest::Gone })
                }
            }
        });
        work.await.map_err(|error| Fault::internal("removing a template", error))?
    }

    /// Removes what nothing leads to in the stores that may have such. What is in use is tried again later.
    pub(crate) async fn collect_all_templates(&self) {
        for project in self.jobs().leftovers() {
            if let Err(fault) = self.collect_templates(&project).await {
                tracing::warn!(error = %fault, %project, "unused templates can't be removed");
            }
        }
    }

    /// Whether nothing is left over in a project's store.
    async fn collect_templates(&self, project: &ProjectId) -> Result<bool, Fault> {
        let (this, project) = (self.clone(), project.clone());
        blocking("removing unused templates", move || {
            let collected = this.template_store(&project)?.collect().map_err(Fault::Refused)?;
            if let Some(collected) = collected.filter(|collected| collected.interrupted > 0) {
                let (layers, interrupted) = (collected.layers, collected.interrupted);
                tracing::info!(%project, interrupted, layers, "removed what interrupted work on templates left");
            }
            let is_clean = collected.is_some_and(|collected| collected.in_use == 0);
            if is_clean {
                this.jobs().forget_leftovers(&project);
            }
            Ok(is_clean)
        })
        .await
    }

    fn list_templates(&self, project: &ProjectId) -> Result<Vec<TemplateView>, Fault> {
        let data = self.data();
        let own = Templates::new(data, project.as_str());
        let mut views: Vec<TemplateView> = own
            .names()
            .map_err(Fault::Refused)?
            .into_iter()
            // Snapshots have a list of their own.
            .filter(|(name, _)| SnapshotId::of_template(name).is_none())
            .map(|(name, record)| view(&own, name, record.template, record.set_at, false))
            .collect();
        let operators = Templates::new(data, LOCAL_PROJECT);
        for name in &self.settings().public_templates {
            // A name of the project's own comes first, as when a sandbox is created.
            if views.iter().any(|view| view.name == *name) {
                continue;
            }
            if let Some(record) = operators.name(name).map_err(Fault::Refused)? {
                views.push(view(&operators, name.clone(), record.template, record.set_at, true));
            }
        }
        views.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(views)
    }

    fn find_template(&self, project: &ProjectId, name: &TemplateName) -> Result<TemplateView, Fault> {
        let all = self.list_templates(project)?;
        all.into_iter().find(|view| view.name == *name).ok_or_else(|| no_template(name))
    }

    /// The store of a project's templates.
    pub(crate) fn template_store(&self, project: &ProjectId) -> Result<Store, Fault> {
        Store::open(self.data(), project.as_str()).map_err(Fault::Refused)
    }
}

fn view(templates: &Templates, name: TemplateName, id: TemplateId, set_at: Timestamp, is_public: bool) -> TemplateView {
    // Held while it is read; if it is removed or moved in between, what it was is shown.
    let contents = templates.find(&name).ok().filter(|held| held.id == id).map(|held| TemplateContents {
        manifest: held.manifest.clone(),
        layers: held.layers.iter().map(|layer| layer.record.clone()).collect(),
    });
    TemplateView { name, id, set_at, is_public, contents }
}

fn no_template(name: &TemplateName) -> Fault {
    Fault::NotFound { what: "template", id: name.to_string() }
}

/// Does what waits for the disk on another thread.
pub(crate) async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.map_err(|error| Fault::internal(what, error))?
}

/// A problem of the store as a fault.
pub(super) fn refused(problem: Problem) -> Fault {
    Fault::Refused(problem)
}
