//! Which stored template a sandbox of a server starts from: its project's own, or one that the operator lets all projects use; and
//! whether it may keep its files on disk.
//!
//! A project learns nothing about the templates of others: a name that it can't use doesn't exist.

use saggar_domain::template::{NameRecord, TemplateLimits};
use saggar_domain::{Code, Draft, Limits, Problem, ProjectId, SandboxId, SnapshotId, Storage, Template, TemplateName};
use saggar_image::{SteadyNames, Store};
use saggar_sandbox::{LOCAL_PROJECT, Templates};

use super::pool::StoredTemplate;
use super::{Sandboxes, now};
use crate::fault::Fault;

impl Sandboxes {
    /// Storage on disk is taken from the disk that the server itself needs, so the operator says how much of it.
    pub(super) fn check_storage(&self, spec: &Draft) -> Result<(), Fault> {
        if spec.storage != Some(Storage::Disk) {
            return Ok(());
        }
        let asked = Limits::resolve(&spec.limits).map_err(Fault::Refused)?.disk.value;
        let refuse =
            |message: String, help: String| Fault::Refused(Problem::new(Code::UnsupportedCapability, message, help));
        match self.settings().disk_storage_max {
            None => Err(refuse(
                "this server keeps the files of sandboxes in memory".to_owned(),
                "leave `storage` out, or ask the operator for the setting `disk_storage_max`".to_owned(),
            )),
            Some(most) if asked.bytes() > most.bytes() => Err(refuse(
                format!("the limit `disk` is {asked}, and this server allows storage on disk of {most} at most"),
                "lower the limit, or keep the files in memory".to_owned(),
            )),
            Some(_) => Ok(()),
        }
    }

    /// The stored template that the spec means; `None` for a built-in one.
    pub(super) fn stored_template(&self, project: &ProjectId, spec: &Draft) -> Result<Option<StoredTemplate>, Fault> {
        let name = match Template::of(spec.template_name()) {
            Template::Host => return Ok(None),
            Template::Image(name) => name,
        };
        let stored = |project: &str| {
            let found = Templates::new(&self.inner.data, project).name(&name).map_err(Fault::Refused)?;
            let stored = |record: NameRecord| {
                let (project, name) = (project.to_owned(), name.clone());
                let limits = TemplateLimits::default();
                self.with_defaults(StoredTemplate { project, name, id: record.template, user: None, limits })
            };
            found.map(stored).transpose()
        };
        if SnapshotId::of_template(&name).is_some() {
            return self.startable_snapshot(project, &name, stored(project.as_str())?).map(Some);
        }
        if let Some(own) = stored(project.as_str())? {
            return Ok(Some(own));
        }
        let is_public = self.settings().public_templates.contains(&name);
        match if is_public { stored(LOCAL_PROJECT)? } else { None } {
            Some(published) => Ok(Some(published)),
            None => Err(missing(&name)),
        }
    }

    /// A snapshot whose time is over is none, though it may still be there.
    fn startable_snapshot(
        &self,
        project: &ProjectId,
        name: &TemplateName,
        stored: Option<StoredTemplate>,
    ) -> Result<StoredTemplate, Fault> {
        let record = match SnapshotId::of_template(name) {
            Some(id) => self.template_store(project)?.snapshot(&id).map_err(Fault::Refused)?,
            None => None,
        };
        let is_there = record.is_some_and(|record| record.facts.expires_at.is_none_or(|end| now() < end));
        stored.filter(|_| is_there).ok_or_else(|| missing(name))
    }

    /// Whether a live sandbox of the project was made from what this name meant.
    pub(crate) fn is_template_live(&self, project: &ProjectId, name: &TemplateName) -> bool {
        !self.live_from(project, name).is_empty()
    }

    /// The live sandboxes of the project that were made from what this name meant.
    pub(crate) fn live_from(&self, project: &ProjectId, name: &TemplateName) -> Vec<SandboxId> {
        let is_from = |id: &SandboxId| {
            self.inner.register.get(id).is_some_and(|live| live.project == *project && live.template() == *name)
        };
        self.inner.register.ids().into_iter().filter(is_from).collect()
    }

    /// Ends the ready sandboxes of templates that their names no longer lead to.
    pub(crate) async fn drop_stale_pools(&self) {
        for template in self.inner.pools.templates() {
            let led_to = Templates::new(&self.inner.data, &template.project).name(&template.name);
            if led_to.is_ok_and(|record| record.is_some_and(|record| record.template == template.id)) {
                continue;
            }
            for ready in self.inner.pools.forget(&template) {
                self.end_ready(ready).await;
            }
        }
    }

    /// Keeps a template's name where it leads, while a sandbox for its pool is made. `None` if it leads elsewhere.
    pub(super) async fn steady(&self, template: &StoredTemplate) -> Option<SteadyNames> {
        let (this, template) = (self.clone(), template.clone());
        let steady = move || {
            let store = Store::open(&this.inner.data, &template.project).ok()?;
            let steady = store.steady().ok()?;
            let record = store.templates().name(&template.name).ok()??;
            (record.template == template.id).then_some(steady)
        };
        // It waits while a name is written.
        tokio::task::spawn_blocking(steady).await.ok()?
    }
}

fn missing(name: &TemplateName) -> Fault {
    Fault::NoSuchTemplate(Problem::new(
        Code::UnsupportedCapability,
        format!("there is no template {:?}", name.as_str()),
        "use `base`; the server's operator sees the others with `saggar template list`, and lets projects use one with the setting `public_templates`",
    ))
}
