//! Which stored template a sandbox of a server starts from: its project's own, or one that the operator lets all projects use; and
//! whether it may keep its files on disk.
//!
//! A project learns nothing about the templates of others: a name that it can't use doesn't exist.

use saggar_domain::{Code, Draft, Limits, Problem, ProjectId, Storage, Template, TemplateName};
use saggar_sandbox::{LOCAL_PROJECT, Templates};

use super::Sandboxes;
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

    /// The project whose stored template the spec means; `None` for a built-in one.
    pub(super) fn template_project(&self, project: &ProjectId, spec: &Draft) -> Result<Option<String>, Fault> {
        let name = match Template::of(spec.template_name()) {
            Template::Host => return Ok(None),
            Template::Image(name) => name,
        };
        let is_in = |project: &str| {
            let found = Templates::new(&self.inner.data, project).name(&name).map_err(Fault::Refused)?;
            Ok::<bool, Fault>(found.is_some())
        };
        if is_in(project.as_str())? {
            return Ok(Some(project.as_str().to_owned()));
        }
        if self.settings().public_templates.contains(&name) && is_in(LOCAL_PROJECT)? {
            return Ok(Some(LOCAL_PROJECT.to_owned()));
        }
        Err(missing(&name))
    }
}

fn missing(name: &TemplateName) -> Fault {
    Fault::NoSuchTemplate(Problem::new(
        Code::UnsupportedCapability,
        format!("there is no template {:?}", name.as_str()),
        "use `base`; the server's operator sees the others with `saggar template list`, and lets projects use one with the setting `public_templates`",
    ))
}
