//! What a project does with its secrets: set, list, read without the value, remove.

use saggar_domain::SandboxId;
use saggar_domain::secret::{Binding, SecretName, SecretValue};
use saggar_store::{Removed, SecretRow, WhileUsed};

use super::header::check_unreserved;
pub use super::vault::Written;
use crate::fail_point::pass;
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
    /// Stores a secret, or its next version. Every live sandbox that uses it has the new version when this returns.
    pub async fn set_secret(&self, permit: &Permit, set: SetSecret) -> Result<(SecretRow, Written), Fault> {
        permit.check(|action| *action == Action::Manage(SECRETS))?;
        check_unreserved(&set.name)?;
        let (this, project) = (self.clone(), permit.project().clone());
        // A client that disconnects must not leave sandboxes with the earlier value.
        let work = tokio::spawn(async move {
            let SetSecret { name, binding, value } = set;
            let (row, written) = this.vault().write(&project, &name, binding.as_ref(), value.as_ref()).await?;
            pass("secret/written");
            // Also if nothing was written: an earlier request may have died before it came to this.
            this.bind_all(&this.store().secret_users(project, name).await?).await?;
            Ok((row, written))
        });
        work.await.map_err(|error| Fault::internal("storing a secret", error))?
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
        let (this, project, name) = (self.clone(), permit.project().clone(), name.clone());
        // As above.
        let work = tokio::spawn(async move {
            match this.store().remove_secret(project, name.clone(), while_used).await? {
                Removed::Done(users) => this.bind_all(&users).await,
                Removed::Absent => Err(Fault::no_secret(&name)),
                Removed::InUse(users) => Err(in_use(&name, &users)),
            }
        });
        work.await.map_err(|error| Fault::internal("removing a secret", error))?
    }
}

fn in_use(name: &SecretName, users: &[SandboxId]) -> Fault {
    let mut named = users.iter().take(NAMED_MAX).map(SandboxId::as_str).collect::<Vec<_>>().join(", ");
    if users.len() > NAMED_MAX {
        named.push_str(&format!(" and {} more", users.len() - NAMED_MAX));
    }
    Fault::Conflict {
        what: format!("secret {name} is used by live sandboxes: {named}"),
        help: "end them first, or remove it with --force (force=true over the API): then they go on without it"
            .to_owned(),
    }
}
