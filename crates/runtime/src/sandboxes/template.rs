//! Which stored template a sandbox of a server starts from: its project's own, or one that the operator lets all projects use.
//!
//! A project learns nothing about the templates of others: a name that it can't use doesn't exist.

use saggar_domain::{Code, Draft, Problem, ProjectId, Template, TemplateName};
use saggar_sandbox::{LOCAL_PROJECT, Templates};

use super::Sandboxes;
use crate::fault::Fault;

impl Sandboxes {
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
