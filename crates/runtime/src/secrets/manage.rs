//! What a project does with its secrets: set, list, read without the value, remove.

use saggar_domain::SandboxId;
use saggar_domain::secret::{Binding, SecretName, SecretValue};
use saggar_store::{Removed, SecretRow, WhileUsed};

pub use super::vault::Written;
use crate::fault::Fault;
use crate::permit::{Action, Kind, Permit};
use crate::sandboxes::Sandboxes;

/// Secrets, as permits name them.
pub const SECRETS: Kind = Kind::new("secrets");

/// How many sandboxes a refusal names.
const NAMED_MAX: usize = 3;

/// A secret to store; what is absent stays as it is.
#[derive(Clone)]
pub struct SetSecret {
    pub name: SecretName,
    pub binding: Option<Binding>,
    pub value: Option<SecretValue>,
}

impl Sandboxes {
    /// Stores a secret, or its next version.
    pub async fn set_secret(&self, permit: &Permit, set: SetSecret) -> Result<(SecretRow, Written), Fault> {
        permit.check(|action| *action == Action::Manage(SECRETS))?;
        let SetSecret { name, binding, value } = set;
        self.vault().write(permit.project(), &name, binding.as_ref(), value.as_ref()).await
    }

    /// Fails if the key file is unsafe. If keys of stored secrets are missing, the server starts all the same: only those
    /// secrets can't be used.
    pub async fn check_sealing_keys(&self) -> Result<(), Fault> {
        match self.vault().check().await {
            Err(Fault::SealingKey { what, help, is_unsafe: false }) => {
                tracing::error!(what, help, "stored secrets can't be opened");
                Ok(())
            }
            other => other,
        }
    }

    /// By name, each without its value.
    pub async fn secrets(&self, permit: &Permit) -> Result<Vec<SecretRow>, Fault> {
        permit.check(|action| *action == Action::Manage(SECRETS))?;
        Ok(self.store().secrets(permit.project().clone()).await?)
    }

    /// One secret without its value, and the live sandboxes that use it.
    pub async fn secret(&self, permit: &Permit, name: &SecretName) -> Result<(SecretRow, Vec<SandboxId>), Fault> {
        permit.check(|action| *action == Action::Manage(SECRETS))?;
        let project = permit.project();
        let found = self.store().secret(project.clone(), name.clone()).await?;
        let row = found.ok_or_else(|| Fault::no_secret(name))?.row;
        Ok((row, self.store().secret_users(project.clone(), name.clone()).await?))
    }

    /// Removes a secret. Live sandboxes that use it prevent that, unless they are to lose it.
    pub async fn remove_secret(&self, permit: &Permit, name: &SecretName, while_used: WhileUsed) -> Result<(), Fault> {
        permit.check(|action| *action == Action::Manage(SECRETS))?;
        match self.store().remove_secret(permit.project().clone(), name.clone(), while_used).await? {
            Removed::Done(_) => Ok(()),
            Removed::Absent => Err(Fault::no_secret(name)),
            Removed::InUse(users) => Err(in_use(name, &users)),
        }
    }
}

fn in_use(name: &SecretName, users: &[SandboxId]) -> Fault {
    let mut named = users.iter().take(NAMED_MAX).map(SandboxId::as_str).collect::<Vec<_>>().join(", ");
    if users.len() > NAMED_MAX {
        named.push_str(&format!(" and {} more", users.len() - NAMED_MAX));
    }
    Fault::Conflict {
        what: format!("secret {name} is used by live sandboxes: {named}"),
        help: "end them first, or remove it with force=true: then they go on without it".to_owned(),
    }
}
