//! The record of one request or one tunnel, from its decision to its end.
//!
//! INVARIANT: each record becomes exactly one [`NetDecision`], when its last owner drops it: the two bodies of a request, or
//! the task of a tunnel. So bytes and duration are those of the whole exchange, however it ended.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use http::Method;
use http::uri::PathAndQuery;
use saggar_domain::net::{Destination, NetDecision, Protocol, Refusal, Rules, Verdict, shown_method, shown_path};
use saggar_domain::secret::SecretName;

use crate::budget::HostSlot;
use crate::link::Link;
use crate::refuse::Page;

pub(crate) struct Record {
    link: Arc<Link>,
    to: Arc<Destination>,
    asked: Asked,
    started: Instant,
    up: AtomicU64,
    down: AtomicU64,
    /// Holds the connection's place among those to this host, and leads to the host's budget.
    slot: OnceLock<Arc<HostSlot>>,
    /// Why the exchange was broken off in the middle of the program's body.
    broken_off: OnceLock<Page>,
    state: Mutex<State>,
}

/// What was asked for.
pub(crate) enum Asked {
    Connection(Protocol),
    Request { protocol: Protocol, method: Method, path: Option<PathAndQuery>, is_upgrade: bool },
}

/// Bytes that must not be passed on: a budget is spent. The record says so already.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Spent(pub Refusal);

struct State {
    verdict: Verdict,
    rule: String,
    reason: Option<String>,
    address: Option<IpAddr>,
    secrets: Vec<SecretName>,
    /// Whether it is counted among the refusals that are not reported yet.
    is_refusing: bool,
}

impl Record {
    /// A record is a refusal until [`Self::allow`] is called.
    pub fn new(link: &Arc<Link>, to: Arc<Destination>, asked: Asked) -> Arc<Self> {
        let state = State {
            verdict: Verdict::Denied,
            rule: "egress/undecided".to_owned(),
            reason: None,
            address: None,
            secrets: Vec::new(),
            is_refusing: false,
        };
        let record = Arc::new(Self {
            link: Arc::clone(link),
            to,
            asked,
            started: Instant::now(),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            slot: OnceLock::new(),
            broken_off: OnceLock::new(),
            state: Mutex::new(state),
        });
        link.enter(&record);
        record
    }

    pub fn allow(&self, rule: String) {
        let mut state = self.state();
        state.verdict = Verdict::Allowed;
        state.rule = rule;
    }

    /// Denies, also what was allowed before: a budget may run out, and rules may change.
    pub fn deny(&self, refusal: &Refusal) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.is_refusing, true) {
            self.link.session().refusing.send_modify(|refusing| *refusing += 1);
        }
        state.verdict = Verdict::Denied;
        state.rule.clone_from(&refusal.rule);
        state.reason = Some(refusal.message.clone());
    }

    /// Denies in the middle of the program's body. If no answer has begun yet, the page is the answer.
    pub fn break_off(&self, page: Page) {
        self.deny(&page.refusal);
        // The first reason is kept: later ones are its consequences.
        let _ = self.broken_off.set(page);
    }

    pub fn broken_off(&self) -> Option<&Page> {
        self.broken_off.get()
    }

    /// Why an allowed exchange failed. The first reason is kept: later ones are its consequences.
    pub fn fail(&self, reason: impl Into<String>) {
        self.state().reason.get_or_insert_with(|| reason.into());
    }

    /// Called before the values are put into the request.
    pub fn use_secrets(&self, names: Vec<SecretName>) {
        self.state().secrets = names;
    }

    pub fn dialled(&self, address: IpAddr) {
        self.state().address = Some(address);
    }

    /// From now on bytes count against the budgets.
    pub fn hold(&self, slot: Arc<HostSlot>) {
        // A record has one destination, so a second slot would be of the same host.
        let _ = self.slot.set(slot);
    }

    /// Takes bytes that go out of the sandbox from the budgets, before they are sent.
    pub fn take_up(&self, bytes: usize) -> Result<(), Spent> {
        self.take(&self.up, bytes)
    }

    /// The same for bytes that come in.
    pub fn take_down(&self, bytes: usize) -> Result<(), Spent> {
        self.take(&self.down, bytes)
    }

    /// What new rules say against this exchange, if it is still going on.
    pub fn forbidden_by(&self, rules: &Rules) -> Option<Refusal> {
        let address = {
            let state = self.state();
            if state.verdict == Verdict::Denied {
                return None;
            }
            state.address
        };
        let decided = match &self.asked {
            Asked::Connection(protocol) => connection_continues(rules, &self.to, *protocol),
            Asked::Request { method, path, is_upgrade, .. } => {
                let path = path.as_ref().map_or("/", PathAndQuery::as_str);
                match is_upgrade {
                    true => rules.upgrade(&self.to, path).map(drop),
                    false => rules.request(&self.to, method.as_str(), path).map(drop),
                }
            }
        };
        decided.and_then(|()| address.map_or(Ok(()), |address| rules.address(&self.to, address))).err()
    }

    fn take(&self, counter: &AtomicU64, bytes: usize) -> Result<(), Spent> {
        let bytes = bytes as u64;
        if let Some(slot) = self.slot.get()
            && let Err(refusal) = self.link.session().budgets.take(slot.budget(), bytes)
        {
            self.deny(&refusal);
            return Err(Spent(refusal));
        }
        counter.fetch_add(bytes, Ordering::Relaxed);
        self.link.moved();
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A tunnel goes on only while the rules still want no look inside.
fn connection_continues(rules: &Rules, to: &Destination, protocol: Protocol) -> Result<(), Refusal> {
    use saggar_domain::net::Passage;
    match (rules.connection(to), protocol) {
        (Passage::Denied(refusal), _) => Err(refusal),
        (Passage::Tunnel { .. }, Protocol::Tls) | (Passage::Raw { .. }, Protocol::Tcp) => Ok(()),
        (Passage::Inspect | Passage::Tunnel { .. } | Passage::Raw { .. }, _) => Err(Refusal::new(
            "egress/rules-changed",
            format!("the rules for {to} now treat the connection in another way"),
            "connect again",
        )),
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (protocol, method, path) = match &self.asked {
            Asked::Connection(protocol) => (*protocol, None, None),
            Asked::Request { protocol, method, path, .. } => {
                let path = path.as_ref().map(|path| shown_path(path.path()));
                (*protocol, Some(shown_method(method.as_str())), path)
            }
        };
        let is_refusing = state.is_refusing;
        let session = self.link.session();
        session.decisions.send(NetDecision {
            host: self.to.host.to_string(),
            address: state.address,
            port: self.to.port,
            protocol,
            method,
            path,
            verdict: state.verdict,
            rule: std::mem::take(&mut state.rule),
            reason: state.reason.take(),
            secrets: std::mem::take(&mut state.secrets),
            bytes_up: self.up.load(Ordering::Relaxed),
            bytes_down: self.down.load(Ordering::Relaxed),
            duration_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            connection: self.link.connection(),
            times: 1,
        });
        // After the decision was sent.
        if is_refusing {
            session.refusing.send_modify(|refusing| *refusing -= 1);
        }
    }
}
