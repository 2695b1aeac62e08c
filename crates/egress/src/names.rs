//! The fake addresses of one session: each name that the sandbox asks for gets an address of its own, of both families.
//!
//! A program inside resolves a name, dials the address it got, and arrives at our gate, where the original destination
//! leads back to the name. An address belongs to one name for the whole session and is never given to another: a program
//! that kept an address can't reach a different name with it. The sandbox's next session, after a crash, gives out others. That takes a bound, [`NAMES_MAX`]; further names get none.
//!
//! IPv4 addresses come from 198.18.0.0/15, which is reserved for benchmarks and never routed. IPv6 addresses have the
//! unique local prefix fdfe:5a66::/96 before the same 32 bits. To the rules both are special addresses, which no name
//! leads to.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use saggar_domain::net::{FAKE_V4, FAKE_V6, HostName};

/// How many names a session may have addresses for.
pub const NAMES_MAX: usize = 16_384;

const V4_FIRST: u32 = 0xc612_0000; // 198.18.0.0
const V6_PREFIX: u128 = 0xfdfe_5a66_u128 << 96;
/// So many times the bound fits into the pool of addresses.
const GENERATIONS: usize = 7;
/// Last octets from 1 to 254: some programs take .0 and .255 for the addresses of a network.
const PER_BLOCK: usize = 254;

/// Whether an address belongs to the pool of any session, given to a name or not.
pub fn is_fake(address: IpAddr) -> bool {
    let address = address.to_canonical();
    FAKE_V4.contains(address) || FAKE_V6.contains(address)
}

/// Shared by the session's DNS and its gates. Both directions take constant time.
#[derive(Debug, Default)]
pub struct Names {
    // A panic while the lock is held can't leave it half changed: see `assign`.
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    /// The place of the first name in the pool of addresses.
    first: usize,
    /// INVARIANT: `by_name[n] == i` exactly if `by_index[i] == n`.
    by_name: HashMap<Arc<HostName>, usize>,
    by_index: Vec<Arc<HostName>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fake {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

/// Whether a name had its address before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assigned {
    New(Fake),
    Known(Fake),
}

impl Assigned {
    pub fn fake(self) -> Fake {
        match self {
            Self::New(fake) | Self::Known(fake) => fake,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this session has asked for {NAMES_MAX} names; no further name gets an address")]
pub struct PoolFull;

impl Names {
    /// A sandbox gets a new session if its egress process died. Names of that one get other addresses than those of the sessions before
    /// it, as long as there are any: a program may still have one of these.
    pub fn of_generation(generation: u32) -> Self {
        let first = (generation as usize % GENERATIONS) * NAMES_MAX;
        Self { pool: Mutex::new(Pool { first, ..Pool::default() }) }
    }

    pub fn assign(&self, name: &HostName) -> Result<Assigned, PoolFull> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&index) = pool.by_name.get(name) {
            return Ok(Assigned::Known(Fake::of(pool.first + index)));
        }
        let index = pool.by_index.len();
        if index >= NAMES_MAX {
            return Err(PoolFull);
        }
        let name = Arc::new(name.clone());
        pool.by_index.push(Arc::clone(&name));
        pool.by_name.insert(name, index);
        Ok(Assigned::New(Fake::of(pool.first + index)))
    }

    /// The name that an address was given to. `None` for an address that isn't of the pool, and for one of the pool that
    /// no name has: ask [`is_fake`] to tell these apart, and refuse the second.
    pub fn name_of(&self, address: IpAddr) -> Option<Arc<HostName>> {
        let index = Fake::index(v4_part(address)?)?;
        let pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.by_index.get(index.checked_sub(pool.first)?).cloned()
    }

    pub fn len(&self) -> usize {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).by_index.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Fake {
    fn of(index: usize) -> Self {
        let bits = V4_FIRST + ((index / PER_BLOCK) as u32) * 256 + (index % PER_BLOCK) as u32 + 1;
        Self { v4: bits.into(), v6: (V6_PREFIX | u128::from(bits)).into() }
    }

    fn index(v4: Ipv4Addr) -> Option<usize> {
        let offset = usize::try_from(u32::from(v4) - V4_FIRST).ok()?;
        let within = (offset % 256).checked_sub(1).filter(|&within| within < PER_BLOCK)?;
        Some(offset / 256 * PER_BLOCK + within)
    }
}

/// The IPv4 address of the pool that an address is or contains. IPv4 within IPv6 (`::ffff:198.18.0.1`) counts: that is how
/// a program with an IPv6 socket dials an IPv4 address.
fn v4_part(address: IpAddr) -> Option<Ipv4Addr> {
    let bits = match address.to_canonical() {
        IpAddr::V4(v4) => u32::from(v4),
        IpAddr::V6(v6) if u128::from(v6) >> 32 == V6_PREFIX >> 32 => (u128::from(v6) & u128::from(u32::MAX)) as u32,
        IpAddr::V6(_) => return None,
    };
    let v4 = Ipv4Addr::from(bits);
    FAKE_V4.contains(v4.into()).then_some(v4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> HostName {
        match saggar_domain::net::Host::parse(text.as_bytes()).unwrap() {
            saggar_domain::net::Host::Name(name) => name,
            other => panic!("{other} is not a name"),
        }
    }

    #[test]
    fn a_name_keeps_its_address_and_leads_back_from_both_families() {
        let names = Names::default();
        let Ok(Assigned::New(first)) = names.assign(&name("a.example")) else { panic!("not new") };
        let Ok(Assigned::New(second)) = names.assign(&name("b.example")) else { panic!("not new") };
        assert_eq!(names.assign(&name("a.example")), Ok(Assigned::Known(first)));
        assert_ne!(first, second);
        assert_eq!((first.v4, first.v6), ("198.18.0.1".parse().unwrap(), "fdfe:5a66::c612:1".parse().unwrap()));

        let mapped = first.v4.to_ipv6_mapped();
        for address in [IpAddr::V4(first.v4), IpAddr::V6(first.v6), IpAddr::V6(mapped)] {
            assert_eq!(names.name_of(address).as_deref(), Some(&name("a.example")), "{address}");
        }
        assert_eq!(names.name_of(second.v6.into()).as_deref(), Some(&name("b.example")));
    }

    #[test]
    fn the_pool_ends_at_its_bound_and_recycles_nothing() {
        let names = Names::default();
        let mut seen = std::collections::HashSet::new();
        for index in 0..NAMES_MAX {
            let fake = names.assign(&name(&format!("n{index}.example"))).unwrap().fake();
            assert!(is_fake(fake.v4.into()) && is_fake(fake.v6.into()));
            assert!(!matches!(fake.v4.octets()[3], 0 | 255));
            assert!(seen.insert(fake.v4), "{} was given twice", fake.v4);
            assert_eq!(names.name_of(fake.v6.into()).unwrap().to_string(), format!("n{index}.example"));
        }
        assert_eq!(names.assign(&name("one.more.example")), Err(PoolFull));
        assert_eq!(names.assign(&name("n0.example")).unwrap().fake().v4, Ipv4Addr::new(198, 18, 0, 1));
        assert_eq!(names.len(), NAMES_MAX);
        for unused in ["198.18.0.0", "198.18.0.255", "198.18.1.0", "198.19.255.254"] {
            assert_eq!(names.name_of(unused.parse().unwrap()), None, "{unused}");
        }
    }

    #[test]
    fn a_later_session_gives_out_other_addresses_and_does_not_know_the_earlier_ones() {
        let generations: Vec<Names> = (0..GENERATIONS as u32).map(Names::of_generation).collect();
        let fakes: Vec<Fake> =
            generations.iter().map(|names| names.assign(&name("a.example")).unwrap().fake()).collect();
        for (names, own) in generations.iter().zip(&fakes) {
            for fake in &fakes {
                assert!(is_fake(fake.v4.into()) && is_fake(fake.v6.into()));
                assert_eq!(names.name_of(fake.v4.into()).is_some(), fake == own, "{fake:?}");
            }
        }
        let last = generations.last().unwrap();
        for index in 1..NAMES_MAX {
            assert!(is_fake(last.assign(&name(&format!("n{index}.example"))).unwrap().fake().v4.into()));
        }
    }

    #[test]
    fn addresses_without_a_name_lead_nowhere() {
        let names = Names::default();
        names.assign(&name("a.example")).unwrap();
        for (address, fake) in [
            ("198.18.0.0", true),
            ("198.18.0.2", true),
            ("198.18.0.255", true),
            ("198.19.255.255", true),
            ("fdfe:5a66::c612:2", true),
            ("::ffff:198.18.0.9", true),
            ("198.17.255.255", false),
            ("198.20.0.1", false),
            ("fdfe:5a66::1", true),
            ("fdfe:5a66:1::c612:1", true),
            ("fdfe:5a67::c612:1", false),
            ("2001:db8::1", false),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!((names.name_of(address), is_fake(address)), (None, fake), "{address}");
        }
    }
}
