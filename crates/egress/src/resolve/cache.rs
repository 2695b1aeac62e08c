//! What name servers answered, for as long as they said, within bounds. Reads no clock; `now` is an argument.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use saggar_domain::net::HostName;

pub(super) const ENTRIES_MAX: usize = 1_024;
/// A shorter time would let a sandbox turn each connection into a question.
const TTL_MIN: u32 = 5;
/// A longer one would keep an address after its service has moved.
const TTL_MAX: u32 = 300;
const TTL_NEGATIVE: u32 = TTL_MIN;

/// The addresses of a name; none at all is an answer too.
pub(super) type Addresses = Vec<IpAddr>;

#[derive(Debug, Default)]
pub(super) struct Cache {
    /// INVARIANT: `order` has each key of `entries` exactly once, the oldest first.
    entries: HashMap<HostName, (Addresses, Instant)>,
    order: VecDeque<HostName>,
}

impl Cache {
    pub fn get(&self, name: &HostName, now: Instant) -> Option<&Addresses> {
        self.entries.get(name).filter(|(_, until)| now < *until).map(|(addresses, _)| addresses)
    }

    /// `ttl` in seconds, as the servers said.
    pub fn put(&mut self, name: &HostName, addresses: Addresses, ttl: u32, now: Instant) {
        let ttl = if addresses.is_empty() { TTL_NEGATIVE } else { ttl.clamp(TTL_MIN, TTL_MAX) };
        let entry = (addresses, now + Duration::from_secs(ttl.into()));
        if self.entries.insert(name.clone(), entry).is_some() {
            return;
        }
        self.order.push_back(name.clone());
        if self.order.len() > ENTRIES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        text.parse().unwrap()
    }

    #[test]
    fn answers_live_as_long_as_the_clamped_ttl() {
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        for (addresses, ttl, lives) in
            [(vec![address], 60, 60), (vec![address], 0, 5), (vec![address], 86_400, 300), (vec![], 86_400, 5)]
        {
            let start = Instant::now();
            let mut cache = Cache::default();
            cache.put(&name("a.example"), addresses.clone(), ttl, start);
            let at = |seconds: u64| cache.get(&name("a.example"), start + Duration::from_secs(seconds));
            assert_eq!((at(lives - 1), at(lives)), (Some(&addresses), None), "{addresses:?} {ttl}");
        }
    }

    #[test]
    fn the_oldest_entry_makes_room() {
        let now = Instant::now();
        let mut cache = Cache::default();
        for index in 0..=ENTRIES_MAX {
            cache.put(&name(&format!("n{index}.example")), Vec::new(), 60, now);
            cache.put(&name(&format!("n{index}.example")), Vec::new(), 60, now);
        }
        assert_eq!((cache.entries.len(), cache.order.len()), (ENTRIES_MAX, ENTRIES_MAX));
        assert!(cache.get(&name("n0.example"), now).is_none());
        assert!(cache.get(&name("n1.example"), now).is_some());
        assert!(cache.get(&name(&format!("n{ENTRIES_MAX}.example")), now).is_some());
    }
}
