//! Handing secrets to the egress service, for the sandboxes that use them.
//!
//! A sandbox holds placeholders, which are derived from its id: nothing of them is stored, and after a restart the same
//! ones are bound again. Values are opened here, sent, and dropped.
//!
//! Several requests, and several processes, may bind the same sandbox at once. Each reads uses and versions again after
//! it has sent, and sends again if they have changed; so what was sent last is never older than what is stored.

use std::collections::BTreeMap;

use saggar_domain::secret::{Binding, Grant, SecretName, SecretUse};
use saggar_domain::{Code, Draft, NetworkMode, Problem, ProjectId, SandboxId};
use saggar_store::SealedSecret;

use crate::fail_point::pass;
use crate::fault::Fault;
use crate::sandboxes::Sandboxes;

/// The purpose string from which placeholders are derived.
const PLACEHOLDER: &str = "placeholder/v1";
/// How often secrets are sent again because they changed meanwhile.
const TRIES: usize = 16;

/// The secrets of a sandbox that is being created: each exists.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolved(BTreeMap<SecretName, Binding>);

/// What to do about a secret that doesn't exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    Refuse,
    /// It was removed by force.
    LeaveOut,
}

/// Whether the egress service has a session of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Done,
    NoSession,
}

impl Sandboxes {
    /// Checks that every secret of a spec exists.
    pub(crate) async fn resolve_secrets(&self, project: &ProjectId, uses: &[SecretUse]) -> Result<Resolved, Fault> {
        let found = self.sealed(project, uses, Missing::Refuse).await?;
        Ok(Resolved(found.into_iter().map(|secret| (secret.row.name, secret.row.binding)).collect()))
    }

    /// The spec as a supervisor gets it: with placeholders in the environment, and without the names of secrets, which are
    /// none of its business.
    pub(crate) fn with_placeholders(&self, id: &SandboxId, spec: Draft, resolved: &Resolved) -> Result<Draft, Fault> {
        let mut spec = spec;
        for used in std::mem::take(&mut spec.secrets) {
            if let Some((variable, binding)) = used.env.zip(resolved.0.get(&used.name)) {
                let placeholder = self.placeholder(id, &used.name, binding);
                spec.env.insert(variable.to_string(), placeholder).map_err(Fault::Refused)?;
            }
        }
        Ok(spec)
    }

    /// Gives a new sandbox its secrets, before anybody can use it.
    pub(crate) async fn bind_new(&self, id: &SandboxId, project: &ProjectId, uses: &[SecretUse]) -> Result<(), Fault> {
        if uses.is_empty() {
            return Ok(());
        }
        pass("create/bind");
        match self.bind(id, project, uses, Missing::Refuse).await? {
            Bound::Done => Ok(()),
            Bound::NoSession => Err(Fault::Ended { id: id.clone(), reason: None }),
        }
    }

    /// Gives live sandboxes the current versions of their secrets. One without a session gets them with its next one.
    pub(crate) async fn bind_all(&self, ids: &[SandboxId]) -> Result<(), Fault> {
        let mut outcome = Ok(());
        for id in ids {
            // One that fails must not leave the others with what they had.
            outcome = outcome.and(self.bind_again(id).await);
        }
        outcome
    }

    /// The same for one sandbox. If it fails, it is tried again later.
    pub(crate) async fn rebind(&self, id: &SandboxId) {
        if let Err(fault) = self.bind_again(id).await {
            tracing::error!(sandbox = %id, error = %fault, "giving a sandbox its secrets failed; trying again later");
        }
    }

    /// The same, if it is live.
    async fn bind_again(&self, id: &SandboxId) -> Result<(), Fault> {
        let bound = self.bind_live(id).await;
        self.note_bound(id, bound.is_ok());
        bound
    }

    async fn bind_live(&self, id: &SandboxId) -> Result<(), Fault> {
        let mut sent: Option<Vec<SecretUse>> = None;
        for _ in 0..TRIES {
            let Some(row) = self.store().sandbox_of_any(id.clone()).await? else { return Ok(()) };
            let uses = row.asked.spec.secrets;
            // One that uses none any more has to forget those that it had.
            let is_over = row.asked.spec.network != Some(NetworkMode::Proxied) || !row.life.state().is_live();
            // Another request may have taken a secret away, and told the service so before this one sent the old list.
            if is_over || sent.as_ref() == Some(&uses) {
                return Ok(());
            }
            self.bind(id, &row.asked.project, &uses, Missing::LeaveOut).await?;
            sent = Some(uses);
        }
        Err(changes_too_often(id))
    }

    async fn bind(
        &self,
        id: &SandboxId,
        project: &ProjectId,
        uses: &[SecretUse],
        missing: Missing,
    ) -> Result<Bound, Fault> {
        for _ in 0..TRIES {
            let sealed = self.sealed(project, uses, missing).await?;
            let mut grants = Vec::with_capacity(sealed.len());
            for secret in &sealed {
                let row = &secret.row;
                let placeholder = self.placeholder(id, &row.name, &row.binding);
                let value = self.vault().open(secret).await?;
                grants.push(Grant { name: row.name.clone(), placeholder, binding: row.binding.clone(), value });
            }
            match self.egress().bind_secrets(id.clone(), grants).await {
                Ok(()) => {}
                Err(problem) if problem.code == Code::SandboxEnded => return Ok(Bound::NoSession),
                Err(problem) => return Err(Fault::Refused(problem)),
            }
            let versions = |sealed: &[SealedSecret]| -> Vec<(SecretName, u64)> {
                sealed.iter().map(|secret| (secret.row.name.clone(), secret.row.version)).collect()
            };
            if versions(&self.sealed(project, uses, missing).await?) == versions(&sealed) {
                return Ok(Bound::Done);
            }
        }
        Err(changes_too_often(id))
    }

    /// The secrets of a spec, each once.
    async fn sealed(
        &self,
        project: &ProjectId,
        uses: &[SecretUse],
        missing: Missing,
    ) -> Result<Vec<SealedSecret>, Fault> {
        let mut names: Vec<&SecretName> = uses.iter().map(|used| &used.name).collect();
        names.sort();
        names.dedup();
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            match (self.store().secret(project.clone(), name.clone()).await?, missing) {
                (Some(secret), _) => found.push(secret),
                (None, Missing::LeaveOut) => {}
                (None, Missing::Refuse) => return Err(unknown_secret("the sandbox", name)),
            }
        }
        Ok(found)
    }

    fn placeholder(&self, id: &SandboxId, name: &SecretName, binding: &Binding) -> String {
        let bytes = self.signing().derive(&[PLACEHOLDER, id.as_str(), name.as_str()]);
        let (random, _) = bytes.split_first_chunk().expect("32 bytes are more than 16");
        binding.placeholder(*random)
    }
}

fn changes_too_often(id: &SandboxId) -> Fault {
    let what = format!("the secrets of sandbox {id} change too often to be bound");
    Fault::Conflict { what, help: "try again in a moment".to_owned() }
}

/// `user` is what uses it.
pub(crate) fn unknown_secret(user: &str, name: &SecretName) -> Fault {
    Fault::NoSuchSecret(Problem::new(
        Code::InvalidValue,
        format!("{user} uses the secret {name}, which does not exist in this project"),
        format!("store it with `saggar secret set {name}`, or leave it out; `saggar secret list` shows what there is"),
    ))
}
