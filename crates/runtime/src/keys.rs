//! API keys of a project: made, listed and revoked.

use std::time::Duration;

use saggar_domain::{Code, KeyId, Problem, ProjectId, ProjectName};
use saggar_store::{ApiKey, KeyName, KeySecret, NewKey, Permissions, Project, Revoked, Store};

use crate::fail_point::pass;
use crate::fault::Fault;
use crate::permit::{Action, Kind, Permit};
use crate::sandboxes::{Sandboxes, now, random};

/// API keys, as permits name them.
pub const KEYS: Kind = Kind::new("keys");

/// What the key of a first start is called.
const FIRST: &str = "first";

impl Sandboxes {
    /// Makes a key, and gives out its secret: now, and never again.
    pub async fn create_key(
        &self,
        permit: &Permit,
        name: &str,
        life: Option<Duration>,
    ) -> Result<(ApiKey, KeySecret), Fault> {
        permit.check(|action| *action == Action::Manage(KEYS))?;
        new_key(self.store(), permit.project().clone(), name, life).await
    }

    /// The keys of a project, newest first.
    pub async fn keys(&self, permit: &Permit) -> Result<Vec<ApiKey>, Fault> {
        permit.check(|action| *action == Action::Manage(KEYS))?;
        pass("keys/list");
        Ok(self.store().keys(permit.project().clone()).await?)
    }

    /// Makes a key worthless.
    pub async fn revoke_key(&self, permit: &Permit, key: &KeyId) -> Result<(), Fault> {
        permit.check(|action| *action == Action::Manage(KEYS))?;
        match self.store().revoke_key(permit.project().clone(), key.clone(), now()).await? {
            Revoked::Done => Ok(()),
            Revoked::Absent => Err(Fault::NotFound { what: "key", id: key.to_string() }),
        }
    }

    /// The project that is there without being asked for.
    pub async fn first_project(&self) -> Result<ProjectId, Fault> {
        Ok(self.store().default_project(ProjectId::from_random(random()), now()).await?.id)
    }

    /// The same, and at the first start a key to it.
    pub async fn first_start(&self) -> Result<(ProjectId, Option<KeySecret>), Fault> {
        let project = self.first_project().await?;
        // One that was revoked counts too: whoever revoked their last key meant it.
        if !self.store().keys(project.clone()).await?.is_empty() {
            return Ok((project, None));
        }
        let (_, secret) = new_key(self.store(), project.clone(), FIRST, None).await?;
        Ok((project, Some(secret)))
    }
}

/// Makes a key of a project, and the project if it isn't there; `None` is the one that is there without being asked for.
pub async fn create_key_in(
    store: &Store,
    project: Option<ProjectName>,
    name: &str,
    life: Option<Duration>,
) -> Result<(ApiKey, KeySecret), Fault> {
    let id = ProjectId::from_random(random());
    let project = match project {
        None => store.default_project(id, now()).await?.id,
        Some(name) => match store.project_by_name(name.clone()).await? {
            Some(project) => project.id,
            None => {
                store.create_project(Project { id: id.clone(), name, created_at: now() }).await?;
                id
            }
        },
    };
    new_key(store, project, name, life).await
}

async fn new_key(
    store: &Store,
    project: ProjectId,
    name: &str,
    life: Option<Duration>,
) -> Result<(ApiKey, KeySecret), Fault> {
    let name = KeyName::parse(name).ok_or_else(|| {
        let help = "use 1 to 64 characters on one line, without spaces around them";
        Fault::Refused(Problem::new(Code::InvalidValue, format!("{name:?} can't be a key's name"), help))
    })?;
    let created_at = now();
    let new = NewKey {
        id: KeyId::from_random(random()),
        project,
        name,
        permissions: Permissions::Full,
        created_at,
        expires_at: life.map(|life| created_at.after(life)),
    };
    Ok(store.create_key(new).await?)
}
