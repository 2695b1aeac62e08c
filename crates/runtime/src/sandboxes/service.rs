//! The start command of a template: begun in each new sandbox, which is given away when its ready command succeeds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use saggar_domain::template::{TemplateId, TemplateLimits};
use saggar_domain::{Code, ExecSpec, Problem, ProjectId, SandboxId, Timeout, User};
use saggar_sandbox::Templates;
use tokio::time::Instant;

use super::Sandboxes;
use super::pool::StoredTemplate;
use crate::code::{ModuleName, WARM_VARIABLE, warm_imports};
use crate::fault::Fault;
use crate::permit::{Action, Permit, Subject};

/// How long a ready command may fail before a sandbox is given up.
const READY_PATIENCE: Duration = Duration::from_secs(60);
/// Between two attempts.
const READY_PAUSE: Duration = Duration::from_millis(100);
/// Templates whose commands are remembered.
const REMEMBERED_MAX: usize = 256;
/// Marks the exec of a start command.
const TAG: &str = "saggar-start";

/// What a template says about its programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Service {
    start: Option<String>,
    ready: Option<String>,
    warm: Vec<ModuleName>,
    user: Option<User>,
    limits: TemplateLimits,
}

/// Services by template. A template never changes, so what is remembered stays right.
#[derive(Debug, Default)]
pub(crate) struct Services(Mutex<HashMap<TemplateId, Arc<Service>>>);

impl Services {
    fn get(&self, id: &TemplateId) -> Option<Arc<Service>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    fn put(&self, id: TemplateId, service: Arc<Service>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= REMEMBERED_MAX {
            all.clear();
        }
        all.insert(id, service);
    }
}

impl Sandboxes {
    /// What the template says; nothing for a built-in one, and for one that has moved meanwhile.
    fn service(&self, template: Option<&StoredTemplate>) -> Result<Arc<Service>, Fault> {
        let Some(template) = template else { return Ok(Arc::default()) };
        if let Some(known) = self.inner.services.get(&template.id) {
            return Ok(known);
        }
        let held = Templates::new(&self.inner.data, &template.project).find(&template.name).map_err(Fault::Refused)?;
        let defaults = held.manifest.defaults();
        let warm = defaults.env.get(WARM_VARIABLE).map(|names| warm_imports(names)).unwrap_or_default();
        let user = defaults.user.as_deref().filter(|_| has_both_users()).and_then(user_of);
        let limits = TemplateLimits::of_labels(&defaults.labels);
        let (start, ready) = (defaults.start.clone(), defaults.ready.clone());
        let service = Arc::new(Service { start, ready, warm, user, limits });
        if held.id == template.id {
            self.inner.services.put(held.id, Arc::clone(&service));
        }
        Ok(service)
    }

    /// The template with the user and the limits that it names.
    pub(super) fn with_defaults(&self, template: StoredTemplate) -> Result<StoredTemplate, Fault> {
        let service = self.service(Some(&template))?;
        Ok(StoredTemplate { user: service.user, limits: service.limits, ..template })
    }

    /// What its Python has imported when a context is started.
    pub(super) fn warm_imports_of(&self, template: Option<&StoredTemplate>) -> Vec<ModuleName> {
        match template {
            None => self.settings().warm_imports.clone(),
            // One that can't be read is reported where it is used.
            Some(_) => self.service(template).map(|service| service.warm.clone()).unwrap_or_default(),
        }
    }

    /// Begins the start command in a new sandbox, and waits for its ready command.
    pub(super) async fn begin_service(
        &self,
        project: &ProjectId,
        id: &SandboxId,
        template: Option<&StoredTemplate>,
    ) -> Result<(), Fault> {
        let service = self.service(template)?;
        let action = Action::Exec(id.clone());
        let permit = Permit::decide(&Subject::Bearer { project: project.clone(), action: action.clone() }, action)?;
        if let Some(start) = &service.start {
            self.start_exec(&permit, shell(start, Some(TAG), None)).await?;
        }
        let Some(ready) = &service.ready else { return Ok(()) };
        let deadline = Instant::now() + READY_PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Fault::Refused(Problem::new(
                    Code::SetupFailed,
                    format!("the template's ready command did not succeed within {} s", READY_PATIENCE.as_secs()),
                    "try the template's start and ready commands in a sandbox, and build it anew",
                )));
            }
            let followed = self.follow_exec(&permit, shell(ready, None, Some(left))).await?;
            let finished = followed.finish(0).await?;
            if finished.exec.exit_code == Some(0) {
                return Ok(());
            }
            tokio::time::sleep(READY_PAUSE.min(left)).await;
        }
    }
}

/// A server of an ordinary user makes sandboxes with a single id: what runs as root there can't be `user` as well.
fn has_both_users() -> bool {
    rustix::process::geteuid().is_root()
}

/// Of `USER` or `USER:GROUP`, each a name or a number; `None` for the user that programs have anyway, which needs no account in the image.
fn user_of(named: &str) -> Option<User> {
    const OURS: &[&str] = &["1000:1000", "user", "user:user"];
    let user = named.split_once(':').map_or(named, |(user, _)| user);
    match user {
        "root" => Some(User::Root),
        number if number.parse() == Ok(User::Root.id()) => Some(User::Root),
        _ if OURS.contains(&named) => None,
        _ => Some(User::Template),
    }
}

fn shell(line: &str, tag: Option<&str>, timeout: Option<Duration>) -> ExecSpec {
    ExecSpec {
        argv: vec!["/bin/sh".to_owned(), "-c".to_owned(), line.to_owned()],
        tag: tag.map(str::to_owned),
        timeout: timeout.map(Timeout::from),
        ..ExecSpec::default()
    }
}
