//! Finds the addresses of a name: hosts entries first, then the cache, then the name servers.
//!
//! Both families are asked at once. Once one has addresses, the other gets [`SECOND_FAMILY_TIME`] more, so that a server
//! which drops AAAA questions doesn't hold up every connection. A chain of aliases is followed within a reply alone, for up to
//! [`ALIASES_MAX`] of them: a resolver gives the whole chain. The end of a chain is a name that no rule allows, and a domain's
//! owner chooses it, so nobody is asked about it.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use saggar_domain::net::HostName;
use tokio::time::timeout;

use crate::rate::Rate;
use crate::resolve::ask::{AskError, ask};
use crate::resolve::cache::Cache;
use crate::resolve::flights::Flights;
use crate::resolve::message::{Family, Reply, WireName};

const SERVERS_MAX: usize = 4;
const ROUNDS: usize = 2;
const ALIASES_MAX: usize = 8;
const SECOND_FAMILY_TIME: Duration = Duration::from_millis(250);
/// Addresses of a name that are looked at, per family.
const ADDRESSES_MAX: usize = 32;
/// Names that are not in the cache, a second and at once. Labels under a wildcard rule can carry data to the domain's
/// servers; this bounds how fast.
const LOOKUPS_PER_SECOND: u32 = 50;
const LOOKUPS_BURST: u32 = 500;
const SUCCESS: u8 = 0;
const NO_SUCH_NAME: u8 = 3;

#[derive(Debug)]
pub struct Upstream {
    servers: Vec<SocketAddr>,
    hosts: HashMap<HostName, Vec<IpAddr>>,
    cache: Mutex<Cache>,
    flights: Flights<Result<Vec<IpAddr>, LookupError>>,
    rate: Mutex<Rate>,
    /// The server that replied last: a dead one costs its time once.
    preferred: AtomicUsize,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LookupError {
    /// There is no such name, or it has no address.
    #[error("no name server knows an address of {0}")]
    NotFound(HostName),
    #[error("no name server is configured on the host")]
    NoServers,
    #[error("no name server gave an answer about {name}: {last}")]
    Failed { name: HostName, last: String },
    #[error("more than {LOOKUPS_PER_SECOND} new names a second were looked up; wait, or connect to fewer names")]
    Rate,
}

/// What one family has: addresses, perhaps none, and for how many seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    addresses: Vec<IpAddr>,
    ttl: u32,
}

impl Upstream {
    /// `hosts`: address and name, as in a hosts file. An entry whose name is no host name is left out. Of the servers, the
    /// first four are used.
    pub fn new(mut servers: Vec<SocketAddr>, hosts: impl IntoIterator<Item = (IpAddr, String)>) -> Self {
        servers.truncate(SERVERS_MAX);
        let mut known: HashMap<HostName, Vec<IpAddr>> = HashMap::new();
        for (address, name) in hosts {
            if let Ok(name) = HostName::parse(name.as_bytes()) {
                known.entry(name).or_default().push(address);
            }
        }
        Self {
            servers,
            hosts: known,
            cache: Mutex::default(),
            flights: Flights::default(),
            rate: Mutex::new(Rate::new(LOOKUPS_PER_SECOND, LOOKUPS_BURST)),
            preferred: AtomicUsize::new(0),
        }
    }

    /// All addresses of a name, unchecked. Never empty. The caller bounds the time.
    pub(super) async fn lookup(&self, name: &HostName) -> Result<Vec<IpAddr>, LookupError> {
        if let Some(addresses) = self.hosts.get(name) {
            return Ok(addresses.clone());
        }
        // Never asked upstream (RFC 6761, 6.3).
        if name.as_str() == "localhost" || name.as_str().ends_with(".localhost") {
            return Ok(vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()]);
        }
        if let Some(addresses) = locked(&self.cache).get(name, Instant::now()) {
            return non_empty(name, addresses.clone());
        }
        if self.servers.is_empty() {
            return Err(LookupError::NoServers);
        }
        self.flights.share(name, self.ask_servers(name)).await
    }

    async fn ask_servers(&self, name: &HostName) -> Result<Vec<IpAddr>, LookupError> {
        if !locked(&self.rate).take(Instant::now()) {
            return Err(LookupError::Rate);
        }
        let found = self.both(name).await?;
        locked(&self.cache).put(name, found.addresses.clone(), found.ttl, Instant::now());
        non_empty(name, found.addresses)
    }

    async fn both(&self, name: &HostName) -> Result<Found, LookupError> {
        let mut v4 = std::pin::pin!(self.family(name, Family::V4));
        let mut v6 = std::pin::pin!(self.family(name, Family::V6));
        let (first, second) = tokio::select! {
            first = &mut v4 => { let second = after(&first, v6).await; (first, second) }
            first = &mut v6 => { let second = after(&first, v4).await; (first, second) }
        };
        match (first, second) {
            (Ok(first), Some(Ok(second))) => Ok(first.join(second)),
            (Ok(found), None | Some(Err(_))) if !found.addresses.is_empty() => Ok(found),
            (Err(_), Some(Ok(found))) if !found.addresses.is_empty() => Ok(found),
            // One family has none, the other is unknown: the error is the answer.
            (Err(error), _) | (_, Some(Err(error))) => Err(error),
            (Ok(found), None) => Ok(found),
        }
    }

    async fn family(&self, name: &HostName, family: Family) -> Result<Found, LookupError> {
        let reply = self.any_server(name, family).await?;
        let mut ttl = u32::MAX;
        let Some(end) = follow(&reply, WireName::from(name), &mut ttl) else {
            return Err(LookupError::Failed { name: name.clone(), last: "too many aliases".to_owned() });
        };
        let mut addresses = Vec::new();
        for (_, seconds, address) in reply.addresses.iter().filter(|(owner, ..)| *owner == end).take(ADDRESSES_MAX) {
            ttl = ttl.min(*seconds);
            addresses.push(*address);
        }
        // None, if there is no such name, or none of this family.
        Ok(Found { addresses, ttl })
    }

    /// The first usable reply. A server that fails or refuses leaves it to the next.
    async fn any_server(&self, name: &HostName, family: Family) -> Result<Reply, LookupError> {
        let mut last = String::new();
        let count = self.servers.len();
        let start = self.preferred.load(Ordering::Relaxed);
        for index in (start..start + count * ROUNDS).map(|index| index % count) {
            match ask(self.servers[index], WireName::from(name), family).await {
                Ok(reply) if matches!(reply.code, SUCCESS | NO_SUCH_NAME) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(reply);
                }
                Ok(reply) => last = format!("server {} says error {}", index + 1, reply.code),
                // The address of a name server is no business of the sandbox, where this text may be shown.
                Err(AskError::Io(error)) => last = format!("server {}: {}", index + 1, error.kind()),
                Err(error) => last = format!("server {}: {error}", index + 1),
            }
        }
        Err(LookupError::Failed { name: name.clone(), last })
    }
}

impl Found {
    fn join(mut self, other: Self) -> Self {
        self.addresses.extend(other.addresses);
        Self { addresses: self.addresses, ttl: self.ttl.min(other.ttl) }
    }
}

/// The second family, with little patience if the first has what is needed.
async fn after(
    first: &Result<Found, LookupError>,
    second: impl Future<Output = Result<Found, LookupError>>,
) -> Option<Result<Found, LookupError>> {
    match first {
        Ok(found) if !found.addresses.is_empty() => timeout(SECOND_FAMILY_TIME, second).await.ok(),
        Ok(_) | Err(_) => Some(second.await),
    }
}

/// The end of the chain of aliases from `name` within a reply, or `None` if the chain is too long.
fn follow(reply: &Reply, mut name: WireName, ttl: &mut u32) -> Option<WireName> {
    let mut followed = 0;
    while let Some(alias) = reply.aliases.iter().find(|alias| alias.owner == name) {
        followed += 1;
        if followed > ALIASES_MAX {
            return None;
        }
        *ttl = (*ttl).min(alias.ttl);
        name = alias.target.clone();
    }
    Some(name)
}

fn non_empty(name: &HostName, addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, LookupError> {
    if addresses.is_empty() { Err(LookupError::NotFound(name.clone())) } else { Ok(addresses) }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
