//! A short-lived cache of checked keys, so that not every request reads the store.
//!
//! INVARIANT: once a key is revoked, no request with it is accepted, not even one whose lookup was in progress.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use saggar_domain::{KeyId, Timestamp};
use saggar_runtime::{Fault, Subject};
use saggar_store::{KeyCheck, KeySecret, Store};
use sha2::{Digest, Sha256};

/// How long a key is cached.
const LIFE: Duration = Duration::from_secs(5);
/// Maximum number of cached keys.
const KEPT_MAX: usize = 4096;

/// The cache.
#[derive(Debug, Default)]
pub struct Keys {
    state: Mutex<Cache>,
}

#[derive(Debug, Default)]
struct Cache {
    known: HashMap<[u8; 32], Known>,
    /// Incremented by each revocation: the result of an earlier lookup is not cached afterwards.
    revocations: u64,
}

#[derive(Clone, Debug)]
struct Known {
    subject: Subject,
    key: KeyId,
    until: Instant,
    expires_at: Option<Timestamp>,
}

impl Keys {
    /// The subject of a key; `None` if it is unknown or no longer valid.
    pub async fn subject(&self, store: &Store, text: &str) -> Result<Option<Subject>, Fault> {
        let Some(secret) = KeySecret::parse(text) else { return Ok(None) };
        // Indexed by hash, so that secrets don't stay in memory.
        let hash: [u8; 32] = Sha256::digest(text.as_bytes()).into();
        let now = Timestamp::from(SystemTime::now());
        let revocations = {
            let state = self.lock();
            match state.known.get(&hash) {
                Some(known) if known.is_good(now) => return Ok(Some(known.subject.clone())),
                Some(_) | None => state.revocations,
            }
        };
        let KeyCheck::Valid(key) = store.check_key(&secret, now).await? else { return Ok(None) };
        let subject = Subject::Key { key: key.id.clone(), project: key.project };
        let known =
            Known { subject: subject.clone(), key: key.id, until: Instant::now() + LIFE, expires_at: key.expires_at };
        let mut state = self.lock();
        if state.revocations == revocations {
            state.remember(hash, known);
        }
        Ok(Some(subject))
    }

    /// Removes a revoked key.
    pub fn forget(&self, key: &KeyId) {
        let mut state = self.lock();
        state.revocations += 1;
        state.known.retain(|_, known| known.key != *key);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Cache> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cache {
    fn remember(&mut self, hash: [u8; 32], known: Known) {
        if self.known.len() >= KEPT_MAX {
            let now = Instant::now();
            self.known.retain(|_, known| known.until > now);
        }
        // Still full: this one is looked up again next time.
        if self.known.len() < KEPT_MAX {
            self.known.insert(hash, known);
        }
    }
}

impl Known {
    fn is_good(&self, now: Timestamp) -> bool {
        self.until > Instant::now() && self.expires_at.is_none_or(|expires_at| expires_at > now)
    }
}
