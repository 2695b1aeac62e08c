//! Changing the sealing key, beside a running server or without one.
//!
//! ```text
//!  key added to the file ──▶ store seals only with it ──▶ every value resealed ──▶ (forget: other keys removed)
//! ```
//! After each step, every value opens with a key that is in the file; so the process may be killed anywhere, and the
//! command repeated. Several may run at once: only keys that the store neither uses nor names are forgotten, and a process whose new key was
//! forgotten before the store named it puts it back. Keys that no value needs any more stay in the file unless they are to be forgotten: backups from
//! before need them, and so do other data directories that use the same file.

use std::collections::BTreeSet;

use saggar_store::{SealedSecret, SealingKeyId, Store};

use super::key_file::KeyFile;
use super::seal::{Label, SealingKey};
use super::vault::{blocking, find, open_with};
use crate::fail_point::pass;
use crate::fault::Fault;

/// What to do with keys that the store no longer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldKeys {
    Keep,
    /// Backups from before, and other stores that were sealed with them, can't be read any more.
    Forget,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rekeyed {
    /// The new key.
    pub key: SealingKeyId,
    /// How many values were resealed.
    pub secrets: u64,
    /// How many keys were removed from the file.
    pub forgotten: usize,
}

/// Makes a new sealing key and reseals every value with it. A server may be running.
pub async fn rekey(store: &Store, file: &KeyFile, old: OldKeys) -> Result<Rekeyed, Fault> {
    // Values that can't be opened stop this before anything has changed.
    let used = store.sealing_keys_in_use().await?;
    {
        let file = file.clone();
        blocking(move || {
            if used.is_empty() {
                file.first()?;
            }
            let keys = file.keys()?;
            used.keys().try_for_each(|id| find(&keys, id).map(drop))
        })
        .await?;
    }
    let new = {
        let file = file.clone();
        blocking(move || file.add()).await?
    };
    pass("rekey/added");
    store.set_sealing_key(new.id().clone()).await?;
    pass("rekey/fenced");
    // Another change may have forgotten the new key before the store named it. From here on, none does.
    let keys = {
        let (file, new) = (file.clone(), new.clone());
        blocking(move || file.restore(&new)).await?
    };
    let mut secrets = 0;
    loop {
        let some = store.secrets_under_other_keys(new.id().clone()).await?;
        if some.is_empty() {
            break;
        }
        secrets += some.len() as u64;
        let again = some.into_iter().map(|secret| reseal(&keys, &new, secret)).collect::<Result<_, _>>()?;
        if !store.reseal_secrets(new.id().clone(), again).await? {
            return Err(Fault::Conflict {
                what: "another process is changing the sealing key".to_owned(),
                help: "wait for it to end; no value is lost".to_owned(),
            });
        }
        pass("rekey/some");
    }
    pass("rekey/resealed");
    let forgotten = match old {
        OldKeys::Keep => 0,
        OldKeys::Forget => {
            let file = file.clone();
            let locked = blocking(move || file.lock()).await?;
            // Asked while no other change can add a key: one that has added its key either is named by now, or puts it back.
            let mut used: BTreeSet<SealingKeyId> = store.sealing_keys_in_use().await?.into_keys().collect();
            used.extend(store.sealing_key().await?);
            used.insert(new.id().clone());
            blocking(move || locked.keep_only(&used)).await?
        }
    };
    Ok(Rekeyed { key: new.id().clone(), secrets, forgotten })
}

fn reseal(
    keys: &[SealingKey],
    new: &SealingKey,
    secret: SealedSecret,
) -> Result<(SealedSecret, saggar_store::Sealed), Fault> {
    let value = open_with(find(keys, &secret.row.key)?, &secret)?;
    let sealed = new.seal(Label::of(&secret), value.expose().as_bytes());
    Ok((secret, sealed))
}
