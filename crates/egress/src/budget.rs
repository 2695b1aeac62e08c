//! Budgets: how many bytes and connections a session, and each host within it, has used.
//!
//! Bytes are taken from a budget before they are passed on, so a budget is never exceeded: what doesn't fit completely isn't
//! sent. The table of hosts is touched once per connection, never per byte.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use saggar_domain::net::{Host, Refusal};

use crate::limits::Limits;

/// Hosts that a session may have used. Their budgets last as long as the session, so none is ever forgotten.
pub(crate) const HOSTS_MAX: usize = 16_384;

#[derive(Debug)]
pub(crate) struct Budgets {
    session: Bytes,
    connections: Arc<AtomicUsize>,
    connections_max: usize,
    hosts: Mutex<HashMap<Host, Arc<HostBudget>>>,
    bytes_per_host: u64,
    connections_per_host: usize,
}

#[derive(Debug)]
struct Bytes {
    used: AtomicU64,
    limit: u64,
}

#[derive(Debug)]
pub(crate) struct HostBudget {
    bytes: Bytes,
    connections: AtomicUsize,
}

/// A connection to a host, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct HostSlot {
    host: Arc<HostBudget>,
    connections: Arc<AtomicUsize>,
}

impl Budgets {
    pub fn new(limits: &Limits) -> Self {
        Self {
            session: Bytes::new(limits.bytes.unwrap_or(u64::MAX)),
            connections: Arc::default(),
            connections_max: limits.connections,
            hosts: Mutex::default(),
            bytes_per_host: limits.bytes_per_host.unwrap_or(u64::MAX),
            connections_per_host: limits.connections_per_host,
        }
    }

    /// Counts one more connection to a host.
    pub fn connect(&self, host: &Host) -> Result<HostSlot, Refusal> {
        let budget = self.host(host)?;
        if !counted(&budget.connections, self.connections_per_host) {
            return Err(Refusal::new(
                "egress/connections-per-host",
                format!("there are {} connections to {host} already", self.connections_per_host),
                "close some of them, or use fewer at once",
            ));
        }
        if !counted(&self.connections, self.connections_max) {
            budget.connections.fetch_sub(1, Ordering::Relaxed);
            return Err(Refusal::new(
                "egress/connections",
                format!("this sandbox has {} connections to servers already", self.connections_max),
                "close some of them, or use fewer at once",
            ));
        }
        Ok(HostSlot { host: budget, connections: Arc::clone(&self.connections) })
    }

    /// Connections to servers that are open or being opened.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Takes bytes from the session's budget and from the host's.
    pub fn take(&self, host: &HostBudget, bytes: u64) -> Result<(), Refusal> {
        if !self.session.take(bytes) {
            return Err(spent("egress/bytes", "this sandbox", self.session.limit));
        }
        if !host.bytes.take(bytes) {
            return Err(spent("egress/bytes-per-host", "one host", host.bytes.limit));
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
        let budget = Arc::new(HostBudget { bytes: Bytes::new(self.bytes_per_host), connections: AtomicUsize::new(0) });
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

impl Bytes {
    fn new(limit: u64) -> Self {
        Self { used: AtomicU64::new(0), limit }
    }

    fn take(&self, bytes: u64) -> bool {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        let fits = before.checked_add(bytes).is_some_and(|used| used <= self.limit);
        if !fits {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }
}

/// One more, unless the limit is reached.
fn counted(counter: &AtomicUsize, limit: usize) -> bool {
    let fits = counter.fetch_add(1, Ordering::Relaxed) < limit;
    if !fits {
        counter.fetch_sub(1, Ordering::Relaxed);
    }
    fits
}

fn spent(rule: &str, of: &str, limit: u64) -> Refusal {
    Refusal::new(
        rule,
        format!("the network budget of {of} is spent: {limit} bytes"),
        "raise the budget, or send and fetch less",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str) -> Host {
        Host::parse(name.as_bytes()).unwrap()
    }

    #[test]
    fn a_budget_is_never_exceeded_and_refuses_what_does_not_fit() {
        let budgets = Budgets::new(&Limits { bytes: Some(10), ..Limits::default() });
        let slot = budgets.connect(&host("a.test")).unwrap();
        assert!(budgets.take(slot.budget(), 8).is_ok());
        assert_eq!(budgets.take(slot.budget(), 3).unwrap_err().rule, "egress/bytes");
        assert!(budgets.take(slot.budget(), 2).is_ok());
    }

    #[test]
    fn hosts_have_budgets_of_their_own() {
        let budgets = Budgets::new(&Limits { bytes_per_host: Some(10), ..Limits::default() });
        let (a, b) = (budgets.connect(&host("a.test")).unwrap(), budgets.connect(&host("b.test")).unwrap());
        assert!(budgets.take(a.budget(), 10).is_ok());
        assert_eq!(budgets.take(a.budget(), 1).unwrap_err().rule, "egress/bytes-per-host");
        assert!(budgets.take(b.budget(), 10).is_ok());
    }

    #[test]
    fn connections_to_all_hosts_together_have_a_limit_too() {
        let budgets = Budgets::new(&Limits { connections: 2, ..Limits::default() });
        let first = budgets.connect(&host("a.test")).unwrap();
        let _second = budgets.connect(&host("b.test")).unwrap();
        assert_eq!(budgets.connect(&host("c.test")).unwrap_err().rule, "egress/connections");
        drop(first);
        assert!(budgets.connect(&host("c.test")).is_ok());
    }

    #[test]
    fn a_dropped_connection_makes_room_for_another() {
        let budgets = Budgets::new(&Limits { connections_per_host: 1, ..Limits::default() });
        let first = budgets.connect(&host("a.test")).unwrap();
        assert_eq!(budgets.connect(&host("a.test")).unwrap_err().rule, "egress/connections-per-host");
        drop(first);
        assert!(budgets.connect(&host("a.test")).is_ok());
    }
}
