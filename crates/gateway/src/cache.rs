//! Answers to requests that were made before, for routes that ask for it. A project gets only its own.
//!
//! In memory: a restart forgets them. The oldest go first.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use saggar_domain::ProjectId;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::wire::ClientWire;

/// Maximum size of one answer, and of all together, in bytes.
pub(crate) const ENTRY_BYTES_MAX: usize = 1 << 20;
const ALL_BYTES_MAX: usize = 64 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CacheKey([u8; 32]);

impl CacheKey {
    /// The body's keys are sorted, so that their order doesn't matter. The project is part of the key, and so are headers that the
    /// provider gets.
    pub(crate) fn new(
        project: &ProjectId,
        wire: ClientWire,
        body: &Value,
        headers: &[(HeaderName, HeaderValue)],
    ) -> Self {
        let mut hash = Sha256::new();
        hash.update(project.as_str());
        hash.update([0, wire as u8]);
        hash.update(body.to_string());
        for (name, value) in headers {
            hash.update([0]);
            hash.update(name.as_str());
            hash.update([0]);
            hash.update(value.as_bytes());
        }
        Self(hash.finalize().into())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Cache {
    entries: HashMap<CacheKey, (Bytes, Instant)>,
    order: VecDeque<CacheKey>,
    bytes: usize,
}

impl Cache {
    pub(crate) fn get(&self, key: &CacheKey, now: Instant) -> Option<Bytes> {
        self.entries.get(key).filter(|(_, until)| now < *until).map(|(answer, _)| answer.clone())
    }

    pub(crate) fn put(&mut self, key: CacheKey, answer: Bytes, life: Duration, now: Instant) {
        if answer.len() > ENTRY_BYTES_MAX {
            return;
        }
        self.bytes += answer.len();
        if let Some((before, _)) = self.entries.insert(key, (answer, now + life)) {
            self.bytes -= before.len();
        } else {
            self.order.push_back(key);
        }
        while self.bytes > ALL_BYTES_MAX {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some((gone, _)) = self.entries.remove(&oldest) {
                self.bytes -= gone.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_project_gets_its_own_answers_for_a_while() {
        let (one, other) = (project("prj_aaaaaaaaaaaaaaaaaaaaaaaaab"), project("prj_aaaaaaaaaaaaaaaaaaaaaaaaac"));
        let key = |project: &ProjectId, body: &Value| CacheKey::new(project, ClientWire::Chat, body, &[]);
        let (mut cache, now) = (Cache::default(), Instant::now());
        let body = json!({"a": 1, "b": 2});
        cache.put(key(&one, &body), Bytes::from_static(b"x"), Duration::from_secs(10), now);
        assert!(cache.get(&key(&one, &json!({"b": 2, "a": 1})), now).is_some(), "in any order");
        assert!(cache.get(&key(&other, &body), now).is_none());
        assert!(cache.get(&CacheKey::new(&one, ClientWire::Anthropic, &body, &[]), now).is_none());
        let beta = [(HeaderName::from_static("openai-beta"), HeaderValue::from_static("x"))];
        assert!(cache.get(&CacheKey::new(&one, ClientWire::Chat, &body, &beta), now).is_none(), "other headers");
        assert!(cache.get(&key(&one, &body), now + Duration::from_secs(10)).is_none());
    }

    #[test]
    fn the_oldest_make_room() {
        let (mut cache, now, project) = (Cache::default(), Instant::now(), project("prj_aaaaaaaaaaaaaaaaaaaaaaaaab"));
        let key = |number: usize| CacheKey::new(&project, ClientWire::Chat, &json!(number), &[]);
        let answer = Bytes::from(vec![0; ENTRY_BYTES_MAX]);
        for number in 0..70 {
            cache.put(key(number), answer.clone(), Duration::from_secs(10), now);
        }
        assert!(cache.bytes <= ALL_BYTES_MAX);
        assert!(cache.get(&key(0), now).is_none() && cache.get(&key(69), now).is_some());
        cache.put(key(70), Bytes::from(vec![0; ENTRY_BYTES_MAX + 1]), Duration::from_secs(10), now);
        assert!(cache.get(&key(70), now).is_none(), "too large");
    }

    fn project(id: &str) -> ProjectId {
        ProjectId::parse(id).unwrap()
    }
}
