//! Which key a request shows, remembered for a moment so that not every request asks the store.
//!
//! INVARIANT: once a key is revoked, no request is let in with it, not even one that was being looked up at that moment.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use saggar_domain::{KeyId, Timestamp};
use saggar_runtime::{Fault, Subject};
use saggar_store::{KeyCheck, KeySecret, Store};
use sha2::{Digest, Sha256};

/// How long a key is remembered.
const LIFE: Duration = Duration::from_secs(5);
/// Most keys that are.
const KEPT_MAX: usize = 4096;

/// Keys that were shown lately.
#[derive(Debug, Default)]
pub struct Keys {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<[u8; 32], Known>,
    /// Raised by each revocation: an answer that was asked for before is not remembered after.
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
    /// Whose key this is; `None` when it is nobody's, or worth nothing any more.
    pub async fn subject(&self, store: &Store, text: &str) -> Result<Option<Subject>, Fault> {
        let Some(secret) = KeySecret::parse(text) else { return Ok(None) };
        // By hash, so that what lies in memory is not the secret.
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

    /// A key is worth nothing from now on.
    pub fn forget(&self, key: &KeyId) {
        let mut state = self.lock();
        state.revocations += 1;
        state.known.retain(|_, known| known.key != *key);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
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
