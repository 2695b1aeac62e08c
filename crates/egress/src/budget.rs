//! Budgets: how many bytes, connections and requests a session, and each host within it, has used.
//!
//! Bytes are taken from a budget before they are passed on, so a budget is never exceeded: what doesn't fit completely isn't
//! sent. The table of hosts is touched once per connection, and once per request where requests have a limit; never per byte. Limits can
//! be changed while the session runs: what was used before counts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use saggar_domain::net::{EgressLimits, Host, Refusal};
use saggar_domain::{ByteSize, Count};
use saggar_jail::Rule;

use crate::limits::Limits;
use crate::rate::Rate;

/// Hosts that a session may have used. Their budgets last as long as the session, so none is ever forgotten.
pub(crate) const HOSTS_MAX: usize = 16_384;
const FEWER_CONNECTIONS: &str = "close some of them, or use fewer at once";
/// In place of a limit where there is none.
const NO_LIMIT: u64 = u64::MAX;

#[derive(Debug)]
pub(crate) struct Budgets {
    /// Where a sandbox asks for nothing.
    base: Limits,
    /// Bytes of all hosts.
    bytes: AtomicU64,
    bytes_max: AtomicU64,
    bytes_per_host_max: AtomicU64,
    /// Connections of the sandbox.
    entered: Arc<AtomicUsize>,
    /// Connections to servers.
    connections: Arc<AtomicUsize>,
    connections_max: AtomicUsize,
    connections_per_host_max: AtomicUsize,
    requests: Mutex<Option<Minute>>,
    requests_max: AtomicU64,
    requests_per_host_max: AtomicU64,
    hosts: Mutex<HashMap<Host, Arc<HostBudget>>>,
}

#[derive(Debug, Default)]
pub(crate) struct HostBudget {
    bytes: AtomicU64,
    connections: AtomicUsize,
    requests: Mutex<Option<Minute>>,
}

/// The requests of the last minute, and the limit by which they are counted.
#[derive(Debug)]
struct Minute {
    limit: u64,
    rate: Rate,
}

/// A connection of the sandbox, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Entered(Arc<AtomicUsize>);

/// A connection to a host, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct HostSlot {
    host: Arc<HostBudget>,
    connections: Arc<AtomicUsize>,
}

impl Budgets {
    pub fn new(base: &Limits, asked: &EgressLimits) -> Self {
        let budgets = Self {
            base: base.clone(),
            bytes: AtomicU64::new(0),
            bytes_max: AtomicU64::new(NO_LIMIT),
            bytes_per_host_max: AtomicU64::new(NO_LIMIT),
            entered: Arc::default(),
            connections: Arc::default(),
            connections_max: AtomicUsize::new(0),
            connections_per_host_max: AtomicUsize::new(0),
            requests: Mutex::default(),
            requests_max: AtomicU64::new(NO_LIMIT),
            requests_per_host_max: AtomicU64::new(NO_LIMIT),
            hosts: Mutex::default(),
        };
        budgets.replace(asked);
        budgets
    }

    /// From now on goes by these limits. Open connections beyond them stay; a spent budget cuts at the next byte.
    pub fn replace(&self, asked: &EgressLimits) {
        let bytes =
            |asked: Option<ByteSize>, base: Option<u64>| asked.map(ByteSize::bytes).or(base).unwrap_or(NO_LIMIT);
        let count = |asked: Option<Count>, base: usize| {
            asked.map_or(base, |asked| usize::try_from(asked.get()).unwrap_or(usize::MAX))
        };
        let rate = |asked: Option<Count>| asked.map_or(NO_LIMIT, Count::get);
        self.bytes_max.store(bytes(asked.bytes, self.base.bytes), Ordering::Relaxed);
        self.bytes_per_host_max.store(bytes(asked.bytes_per_host, self.base.bytes_per_host), Ordering::Relaxed);
        self.connections_max.store(count(asked.connections, self.base.connections), Ordering::Relaxed);
        let per_host = count(asked.connections_per_host, self.base.connections_per_host);
        self.connections_per_host_max.store(per_host, Ordering::Relaxed);
        self.requests_max.store(rate(asked.requests_per_minute), Ordering::Relaxed);
        self.requests_per_host_max.store(rate(asked.requests_per_minute_per_host), Ordering::Relaxed);
    }

    /// Counts one more connection of the sandbox.
    pub fn enter(&self) -> Result<Entered, Refusal> {
        let most = self.connections_max.load(Ordering::Relaxed);
        if !counted(&self.entered, most) {
            return Err(too_many_connections(most));
        }
        Ok(Entered(Arc::clone(&self.entered)))
    }

    /// Connections of the sandbox that are open.
    pub fn entered(&self) -> usize {
        self.entered.load(Ordering::Relaxed)
    }

    /// Counts one more connection to a host.
    pub fn connect(&self, host: &Host) -> Result<HostSlot, Refusal> {
        let budget = self.host(host)?;
        let per_host = self.connections_per_host_max.load(Ordering::Relaxed);
        if !counted(&budget.connections, per_host) {
            let message = format!("there are {per_host} connections to {host} already");
            return Err(refusal("connections_per_host", message, FEWER_CONNECTIONS));
        }
        let most = self.connections_max.load(Ordering::Relaxed);
        if !counted(&self.connections, most) {
            budget.connections.fetch_sub(1, Ordering::Relaxed);
            return Err(too_many_connections(most));
        }
        Ok(HostSlot { host: budget, connections: Arc::clone(&self.connections) })
    }

    /// Connections to servers that are open or being opened.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts one more request, or one more connection that passes unread.
    pub fn admit(&self, host: &Host, now: Instant) -> Result<(), Refusal> {
        let per_host = self.requests_per_host_max.load(Ordering::Relaxed);
        // The host's own limit first: what it refuses costs the others nothing.
        if per_host != NO_LIMIT && !requested(&self.host(host)?.requests, per_host, now) {
            return Err(too_many_requests(
                &format!("this sandbox to {host}"),
                per_host,
                "requests_per_minute_per_host",
            ));
        }
        let most = self.requests_max.load(Ordering::Relaxed);
        if most != NO_LIMIT && !requested(&self.requests, most, now) {
            return Err(too_many_requests("this sandbox", most, "requests_per_minute"));
        }
        Ok(())
    }

    /// Takes bytes from the session's budget and from the host's.
    pub fn take(&self, host: &HostBudget, bytes: u64) -> Result<(), Refusal> {
        let most = self.bytes_max.load(Ordering::Relaxed);
        if !taken(&self.bytes, bytes, most) {
            return Err(spent("bytes", "this sandbox", most));
        }
        let per_host = self.bytes_per_host_max.load(Ordering::Relaxed);
        if !taken(&host.bytes, bytes, per_host) {
            self.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return Err(spent("bytes_per_host", "one host", per_host));
        }
        Ok(())
    }

    fn host(&self, host: &Host) -> Result<Arc<HostBudget>, Refusal> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(budget) = hosts.get(host) {
            return Ok(Arc::clone(budget));
        }
        if hosts.len() >= HOSTS_MAX {
            return Err(Refusal::new(
                "egress/hosts",
                format!("this sandbox has used {HOSTS_MAX} hosts already"),
                "start a new sandbox",
            ));
        }
        let budget = Arc::<HostBudget>::default();
        hosts.insert(host.clone(), Arc::clone(&budget));
        Ok(budget)
    }
}

impl HostSlot {
    pub fn budget(&self) -> &Arc<HostBudget> {
        &self.host
    }
}

impl Drop for HostSlot {
    fn drop(&mut self) {
        self.host.connections.fetch_sub(1, Ordering::Relaxed);
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether one more request is within the limit. Another limit than before begins anew.
fn requested(requests: &Mutex<Option<Minute>>, limit: u64, now: Instant) -> bool {
    if !Rule::EgressRates.is_on() {
        return true;
    }
    let mut requests = requests.lock().unwrap_or_else(PoisonError::into_inner);
    let minute = match &mut *requests {
        Some(minute) if minute.limit == limit => minute,
        other => other.insert(Minute { limit, rate: Rate::per_minute(u32::try_from(limit).unwrap_or(u32::MAX)) }),
    };
    minute.rate.take(now)
}

/// Adds bytes, if they fit.
fn taken(used: &AtomicU64, bytes: u64, limit: u64) -> bool {
    let before = used.fetch_add(bytes, Ordering::Relaxed);
    let fits = before.checked_add(bytes).is_some_and(|used| used <= limit) || !Rule::EgressBytes.is_on();
    if !fits {
        used.fetch_sub(bytes, Ordering::Relaxed);
    }
    fits
}

/// One more, unless the limit is reached.
fn counted(counter: &AtomicUsize, limit: usize) -> bool {
    let fits = counter.fetch_add(1, Ordering::Relaxed) < limit || !Rule::EgressConnections.is_on();
    if !fits {
        counter.fetch_sub(1, Ordering::Relaxed);
    }
    fits
}

/// The limit's name in a spec is that of its rule and of its flag.
fn refusal(limit: &str, message: String, instead: &str) -> Refusal {
    let name = limit.replace('_', "-");
    let help = format!("{instead}, or raise the limit: --net-{name}, `egress.limits.{limit}` in a spec");
    Refusal::new(format!("egress/{name}"), message, help)
}

fn spent(limit: &str, of: &str, most: u64) -> Refusal {
    let message = format!("the network budget of {of} is spent: {most} bytes");
    refusal(limit, message, "send and fetch less")
}

fn too_many_connections(most: usize) -> Refusal {
    refusal("connections", format!("this sandbox has {most} connections already"), FEWER_CONNECTIONS)
}

fn too_many_requests(of: &str, most: u64, limit: &str) -> Refusal {
    let message = format!("more requests than the limit of {of} allows: {most} in a minute");
    refusal(limit, message, "wait a minute")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(limits: Limits) -> Budgets {
        Budgets::new(&limits, &EgressLimits::default())
    }

    fn asking(json: &str) -> EgressLimits {
        serde_json::from_str(json).unwrap()
    }

    fn host(name: &str) -> Host {
        Host::parse(name.as_bytes()).unwrap()
    }

    #[test]
    fn a_budget_is_never_exceeded_and_refuses_what_does_not_fit() {
        let budgets = of(Limits { bytes: Some(10), ..Limits::default() });
        let slot = budgets.connect(&host("a.test")).unwrap();
        assert!(budgets.take(slot.budget(), 8).is_ok());
        assert_eq!(budgets.take(slot.budget(), 3).unwrap_err().rule, "egress/bytes");
        assert!(budgets.take(slot.budget(), 2).is_ok());
    }

    #[test]
    fn hosts_have_budgets_of_their_own() {
        let budgets = of(Limits { bytes_per_host: Some(10), ..Limits::default() });
        let (a, b) = (budgets.connect(&host("a.test")).unwrap(), budgets.connect(&host("b.test")).unwrap());
        assert!(budgets.take(a.budget(), 10).is_ok());
        assert_eq!(budgets.take(a.budget(), 1).unwrap_err().rule, "egress/bytes-per-host");
        assert!(budgets.take(b.budget(), 10).is_ok());
    }

    #[test]
    fn connections_to_all_hosts_together_have_a_limit_too() {
        let budgets = of(Limits { connections: 2, ..Limits::default() });
        let first = budgets.connect(&host("a.test")).unwrap();
        let _second = budgets.connect(&host("b.test")).unwrap();
        assert_eq!(budgets.connect(&host("c.test")).unwrap_err().rule, "egress/connections");
        drop(first);
        assert!(budgets.connect(&host("c.test")).is_ok());
    }

    #[test]
    fn a_dropped_connection_makes_room_for_another() {
        let budgets = of(Limits { connections_per_host: 1, ..Limits::default() });
        let first = budgets.connect(&host("a.test")).unwrap();
        assert_eq!(budgets.connect(&host("a.test")).unwrap_err().rule, "egress/connections-per-host");
        drop(first);
        assert!(budgets.connect(&host("a.test")).is_ok());
    }

    #[test]
    fn requests_of_a_minute_have_a_limit_for_each_host_and_altogether() {
        let asked = asking(r#"{"requests_per_minute": 5, "requests_per_minute_per_host": 2}"#);
        let budgets = Budgets::new(&Limits::default(), &asked);
        let now = Instant::now();
        let rules: Vec<String> = ["a.test", "a.test", "a.test", "b.test", "b.test", "c.test", "d.test"]
            .map(|name| budgets.admit(&host(name), now).err().map_or(String::new(), |refusal| refusal.rule))
            .into();
        let (per_host, all) = ("egress/requests-per-minute-per-host", "egress/requests-per-minute");
        assert_eq!(rules, ["", "", per_host, "", "", "", all]);
        assert!(budgets.admit(&host("d.test"), now + std::time::Duration::from_secs(60)).is_ok());
    }

    #[test]
    fn limits_can_be_replaced_and_what_was_used_before_counts() {
        let budgets = Budgets::new(&Limits::default(), &asking(r#"{"bytes": 10}"#));
        let slot = budgets.connect(&host("a.test")).unwrap();
        assert!(budgets.take(slot.budget(), 8).is_ok());
        budgets.replace(&asking(r#"{"bytes": 12, "connections": 1, "bytes_per_host": 9}"#));
        assert_eq!(budgets.take(slot.budget(), 2).unwrap_err().rule, "egress/bytes-per-host");
        assert!(budgets.take(slot.budget(), 1).is_ok());
        assert_eq!(budgets.connect(&host("b.test")).unwrap_err().rule, "egress/connections");
        let entered = budgets.enter().unwrap();
        let refused = budgets.enter().unwrap_err();
        assert_eq!((refused.rule.as_str(), budgets.entered()), ("egress/connections", 1));
        assert!(refused.help.contains("--net-connections, `egress.limits.connections`"), "{}", refused.help);
        drop(entered);
        budgets.replace(&EgressLimits::default());
        assert!(budgets.connect(&host("b.test")).is_ok() && budgets.take(slot.budget(), 1000).is_ok());
    }
}
