//! The vault: seals what is stored and opens what is used. It decides nothing about who may.

use saggar_domain::ProjectId;
use saggar_domain::secret::{Binding, SecretName, SecretValue};
use saggar_store::{NewSecret, Put, SealedSecret, SealingKeyId, SecretRow, Store};

use super::key_file::{KeyFault, KeyFile};
use super::seal::{Label, SealingKey};
use crate::fault::Fault;
use crate::sandboxes::now;

/// How often a write is tried again because another one came first. Each time, another one has succeeded.
const TRIES: usize = 16;

#[derive(Clone, Debug)]
pub(crate) struct Vault {
    store: Store,
    keys: KeyFile,
}

/// What came of storing a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Created,
    /// It has a new version.
    Changed,
    /// It already had this value and this binding: nothing was written.
    Same,
}

impl Vault {
    pub(crate) fn new(store: Store, keys: KeyFile) -> Self {
        Self { store, keys }
    }

    /// Stores a secret or its next version. What is not given stays as it is; a new secret needs both.
    pub(super) async fn write(
        &self,
        project: &ProjectId,
        name: &SecretName,
        binding: Option<&Binding>,
        value: Option<&SecretValue>,
    ) -> Result<(SecretRow, Written), Fault> {
        for _ in 0..TRIES {
            let before = self.store.secret(project.clone(), name.clone()).await?;
            let opened = match &before {
                Some(before) => Some(self.open(before).await),
                None => None,
            };
            let (binding, value) = match (&before, opened) {
                (None, _) => (given(binding, name, "binding")?, given(value, name, "value")?.clone()),
                (Some(before), Some(opened)) => {
                    let binding = binding.unwrap_or(&before.row.binding);
                    match (value, opened) {
                        (Some(value), Ok(opened))
                            if value.expose() == opened.expose() && *binding == before.row.binding =>
                        {
                            return Ok((before.row.clone(), Written::Same));
                        }
                        // A value whose key is lost can be replaced.
                        (Some(value), _) => (binding, value.clone()),
                        (None, opened) => {
                            let opened = opened?;
                            if *binding == before.row.binding {
                                return Ok((before.row.clone(), Written::Same));
                            }
                            (binding, opened)
                        }
                    }
                }
                (Some(_), None) => unreachable!("what exists was opened above"),
            };
            let version = before.as_ref().map_or(0, |before| before.row.version) + 1;
            let key = self.sealing_key().await?;
            let binding_text = NewSecret::text_of(binding);
            let label = Label { project, name, version, binding_text: &binding_text };
            let at = now();
            let new = NewSecret {
                project: project.clone(),
                name: name.clone(),
                version,
                at,
                key: key.id().clone(),
                sealed: key.seal(label, value.expose().as_bytes()),
                binding_text,
            };
            match self.store.put_secret(new).await? {
                Put::Done => {
                    let row = SecretRow {
                        project: project.clone(),
                        name: name.clone(),
                        version,
                        created_at: before.as_ref().map_or(at, |before| before.row.created_at),
                        updated_at: at,
                        key: key.id().clone(),
                        binding: binding.clone(),
                    };
                    let written = if before.is_none() { Written::Created } else { Written::Changed };
                    return Ok((row, written));
                }
                Put::Changed | Put::OtherKey => {}
            }
        }
        Err(Fault::Conflict {
            what: format!("secret {name} is being changed by many others"),
            help: "try again in a moment".to_owned(),
        })
    }

    pub(crate) async fn open(&self, secret: &SealedSecret) -> Result<SecretValue, Fault> {
        let key = self.key(&secret.row.key).await?;
        open_with(&key, secret)
    }

    /// The key that new values are sealed with; the first one is made if nothing is sealed yet.
    async fn sealing_key(&self) -> Result<SealingKey, Fault> {
        let named = self.store.sealing_key().await?;
        let is_new = match &named {
            None => self.store.sealing_keys_in_use().await?.is_empty(),
            Some(id) => match self.key(id).await {
                // Nothing is sealed any more, so the key that is missing is not missed.
                Err(Fault::SealingKey { is_unsafe: false, .. })
                    if self.store.sealing_keys_in_use().await?.is_empty() =>
                {
                    true
                }
                key => return key,
            },
        };
        let file = self.keys.clone();
        let key = move || match is_new {
            true => file.first(),
            false => file.keys()?.into_iter().next().ok_or(KeyFault::Empty),
        };
        let key = blocking(key).await?;
        if named.is_some() {
            self.store.set_sealing_key(key.id().clone()).await?;
        }
        Ok(key)
    }

    /// The key with this id.
    async fn key(&self, id: &SealingKeyId) -> Result<SealingKey, Fault> {
        let (file, id) = (self.keys.clone(), id.clone());
        blocking(move || find(&file.keys()?, &id).cloned()).await
    }

    /// Fails if the key file is unsafe, or if there are sealed values whose key it doesn't have. A file that doesn't exist is
    /// fine as long as nothing is sealed.
    pub(crate) async fn check(&self) -> Result<(), Fault> {
        let file = self.keys.clone();
        let used = self.store.sealing_keys_in_use().await?;
        let check = move || {
            if used.is_empty() && !file.exists() {
                return Ok(());
            }
            let keys = file.keys()?;
            used.keys().try_for_each(|id| find(&keys, id).map(drop))
        };
        blocking(check).await
    }
}

/// Reads a file apart from the runtime's threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, KeyFault> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(Fault::from),
        Err(error) => Err(Fault::internal("reading the sealing keys", error)),
    }
}

pub(super) fn find<'a>(keys: &'a [SealingKey], id: &SealingKeyId) -> Result<&'a SealingKey, KeyFault> {
    let missing = || KeyFault::NoSuchKey { id: id.clone(), has: keys.iter().map(|key| key.id().clone()).collect() };
    keys.iter().find(|key| key.id() == id).ok_or_else(missing)
}

pub(super) fn open_with(key: &SealingKey, secret: &SealedSecret) -> Result<SecretValue, Fault> {
    let damaged = || Fault::SealingKey {
        what: format!("secret {} is not what was sealed with key {}", secret.row.name, secret.row.key),
        help: "set its value again; `saggar check` looks for more damage",
        is_unsafe: false,
    };
    let value = key.open(Label::of(secret), &secret.sealed).ok_or_else(damaged)?;
    let value = std::str::from_utf8(&value).map_err(|_| damaged())?;
    SecretValue::parse(value).map_err(|_| damaged())
}

fn given<'a, T>(part: Option<&'a T>, name: &SecretName, what: &'static str) -> Result<&'a T, Fault> {
    part.ok_or_else(|| {
        Fault::Refused(saggar_domain::Problem::new(
            saggar_domain::Code::InvalidValue,
            format!("secret {name} does not exist yet, and the request has no {what}"),
            "give a new secret both a value and a binding",
        ))
    })
}

impl From<KeyFault> for Fault {
    fn from(fault: KeyFault) -> Self {
        Self::SealingKey { what: fault.to_string(), help: fault.help(), is_unsafe: fault.is_unsafe() }
    }
}
