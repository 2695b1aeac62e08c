//! Decisions: what the rules of a sandbox say about a destination, a request and an address.
//!
//! Deny wins wherever it stands. What no rule allows is denied, so without rules everything is. Allow rules match strictly and deny
//! rules loosely: where a server could understand a request in two ways, an allow rule doesn't match and a deny rule does.
//! Adding a deny rule never allows more.

use std::cell::LazyCell;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::net::address::{AddressClass, MODEL_HOST, Range, SELF_TEST_NAME, embedded, special};
use crate::net::authority::Destination;
use crate::net::host::{Host, HostName};
use crate::net::method::{WEBSOCKET, check as check_method};
use crate::net::models::{MODEL_RULE, is_of_models};
use crate::net::path::{LOOKALIKE, has_lookalike, segments};
use crate::net::pattern::{HostPattern, is_internal};
use crate::net::refusal::{Refusal, RuleRef};
use crate::net::remedy;
use crate::net::rule::{Match, Rule, Scheme};
use crate::net::spec::EgressDraft;
use crate::problem::Problem;

/// Headers by which a request can claim another method or path than its own. Remove them where rules restrict either
/// ([`Rules::restricts`]).
pub const OVERRIDE_HEADERS: &[&str] = &[
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-method",
    "x-original-uri",
    "x-original-url",
    "x-override-url",
    "x-rewrite-url",
];

/// The rules that a session enforces, with sets expanded. Its text form is the [`EgressDraft`] it was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "EgressDraft", into = "EgressDraft")]
pub struct Rules {
    draft: EgressDraft,
    allow: Vec<Entry>,
    deny: Vec<Entry>,
    own: Vec<IpAddr>,
    /// See [`Self::with_bound`].
    pub(super) bound: Vec<Match>,
    /// See [`Self::with_models`].
    pub(super) has_models: bool,
}

/// One rule, and how it is referred to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) rule: Match,
    pub(super) text: RuleRef,
}

/// How a connection may continue, decided before anything is read from the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Passage {
    Denied(Refusal),
    /// Each request is decided. TLS is terminated.
    Inspect,
    /// TLS passes by SNI. Plain HTTP is still parsed request by request. See [`Rules::wire`].
    Tunnel {
        rule: RuleRef,
    },
    /// Neither TLS nor HTTP is expected.
    Raw {
        rule: RuleRef,
    },
}

/// What a client must speak to a destination whose passage is `Inspect` or `Tunnel`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Tls,
    Http,
    /// The first byte tells: 0x16 begins TLS.
    Either,
}

impl Rules {
    /// Expands sets. Fails if a set is unknown, or if there are too many rules.
    pub fn new(draft: EgressDraft) -> Result<Self, Problem> {
        draft.check_size()?;
        let (allow, deny) = (draft.expanded_allow()?, draft.expanded_deny()?);
        Ok(Self { draft, allow, deny, own: Vec::new(), bound: Vec::new(), has_models: false })
    }

    /// Adds the addresses of this host's interfaces: they are special too.
    pub fn with_own_addresses(mut self, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.own.extend(addresses);
        self
    }

    /// Adds allow rules that a person gave while the sandbox ran.
    pub fn with_allowed(self, more: &[Rule]) -> Result<Self, Problem> {
        let mut draft = self.draft.clone();
        draft.allow.extend(more.iter().cloned());
        Ok(Self::new(draft)?.with_own_addresses(self.own).with_models(self.has_models))
    }

    pub fn draft(&self) -> &EgressDraft {
        &self.draft
    }

    /// Decides before anything is read from the client.
    pub fn connection(&self, to: &Destination) -> Passage {
        if to.port == 0 {
            return Passage::Denied(remedy::no_port(to));
        }
        if matches!(&to.host, Host::Name(name) if name.as_str() == SELF_TEST_NAME) {
            return Passage::Denied(self.no_rule(to));
        }
        if let Some(denied) = self.denying(to).find(|entry| !entry.rule.is_about_requests()) {
            return Passage::Denied(remedy::denied(to, &denied.text));
        }
        if let Some(address) = to.host.address()
            && let Err(refusal) = self.address(to, address)
        {
            return Passage::Denied(refusal);
        }
        if is_of_models(to) {
            return self.to_models(to);
        }
        let mut allowing = self.allowing(to).peekable();
        let Some(first) = allowing.peek().copied() else { return Passage::Denied(self.no_rule(to)) };
        if self.restricts(to) {
            return Passage::Inspect;
        }
        let is_web = matches!(to.port, 80 | 443);
        match allowing.find(|entry| !is_web && entry.rule.scheme.is_none()) {
            Some(raw) => Passage::Raw { rule: raw.text.clone() },
            None => Passage::Tunnel { rule: first.text.clone() },
        }
    }

    pub fn wire(&self, to: &Destination) -> Wire {
        match to.port {
            80 => Wire::Http,
            443 => Wire::Tls,
            _ if self.allowing(to).all(|entry| entry.rule.scheme == Some(Scheme::Https)) => Wire::Tls,
            _ if self.allowing(to).all(|entry| entry.rule.scheme == Some(Scheme::Http)) => Wire::Http,
            _ => Wire::Either,
        }
    }

    /// Decides one request. `path` is raw and may have a query. Also checks what [`Self::connection`] checks.
    pub fn request(&self, to: &Destination, method: &str, path: &str) -> Result<RuleRef, Refusal> {
        check_method(method).map_err(|why| remedy::unusable_method(to, why))?;
        self.decide(to, &[method], path)
    }

    /// Decides a WebSocket or another upgrade: a GET after which both sides can send anything. A rule with methods allows it only
    /// if it lists `WEBSOCKET`; a deny rule for GET denies it too.
    pub fn upgrade(&self, to: &Destination, path: &str) -> Result<RuleRef, Refusal> {
        self.decide(to, &[WEBSOCKET, "GET"], path)
    }

    /// Decides whether an address may be dialled for a destination. The checked address must be the one that is dialled.
    pub fn address(&self, to: &Destination, address: IpAddr) -> Result<(), Refusal> {
        // A rule about requests to an address is applied to each request if the destination is that address. To a name that resolves
        // there it can't be applied, so the address is denied.
        let is_literal = to.host.address() == Some(address);
        let denied = self.deny.iter().find(|entry| {
            entry.rule.host.range().is_some_and(|range| range.contains(address))
                && entry.rule.ports.denies(to.port)
                && !(is_literal && entry.rule.is_about_requests())
        });
        if let Some(denied) = denied {
            return Err(remedy::denied_address(to, address, &denied.text));
        }
        if self.own.contains(&address) && !self.names(to, address, Range::single(address)) {
            return Err(remedy::special(to, address, AddressClass::Own));
        }
        if let Some((class, range)) = special(address)
            && !self.names(to, address, range)
        {
            return Err(remedy::special(to, address, class));
        }
        // An address inside this one must pass all of this too.
        match address {
            IpAddr::V6(outer) => embedded(outer).map_or(Ok(()), |inner| self.address(to, inner.into())),
            IpAddr::V4(_) => Ok(()),
        }
    }

    /// Whether a resolver may be asked about a name.
    pub fn resolves(&self, name: &HostName) -> bool {
        let host = Host::Name(name.clone());
        let is_denied = self.deny.iter().any(|entry| {
            entry.rule.host.denies(&host) && !entry.rule.is_about_requests() && entry.rule.ports.is_every()
        });
        if name.as_str() == MODEL_HOST {
            return !is_denied && self.has_models;
        }
        !is_denied && self.allow.iter().any(|entry| entry.rule.host.allows(&host))
    }

    /// Whether a rule for this destination has a method or a path, or a secret is bound to it, so that [`OVERRIDE_HEADERS`] matter.
    pub fn restricts(&self, to: &Destination) -> bool {
        self.allowing(to).chain(self.denying(to)).any(|entry| entry.rule.is_about_requests())
            || self.is_bound(to)
            || is_of_models(to)
    }

    /// Whether a secret is bound to this host and port.
    pub fn is_bound(&self, to: &Destination) -> bool {
        self.bound.iter().any(|rule| rule.host.allows(&to.host) && rule.ports.allows(to.port))
    }

    pub(super) fn allow_hosts(&self) -> impl Iterator<Item = &HostPattern> {
        self.allow.iter().map(|entry| &entry.rule.host)
    }

    /// The allow rules and the deny rules that speak of a destination.
    pub fn about(&self, to: &Destination) -> (Vec<RuleRef>, Vec<RuleRef>) {
        let texts = |entry: &Entry| entry.text.clone();
        (self.allowing(to).map(texts).collect(), self.denying(to).map(texts).collect())
    }

    /// `methods`: any of them is enough for a deny rule; an allow rule must have the first.
    fn decide(&self, to: &Destination, methods: &[&str], path: &str) -> Result<RuleRef, Refusal> {
        if let Passage::Denied(refusal) = self.connection(to) {
            return Err(refusal);
        }
        let method = methods[0];
        let path = path.split('?').next().unwrap_or_default();
        let is_sendable = path.starts_with('/') || (path == "*" && method == "OPTIONS");
        if !is_sendable || path.contains('#') || path.chars().any(|c| c.is_control() || c == ' ') {
            return Err(remedy::ambiguous_path(to, "is not the path of a request"));
        }
        let parts = LazyCell::new(|| segments(path));
        for entry in self.denying(to) {
            if !methods.iter().any(|method| entry.rule.methods.matches_loosely(method)) {
                continue;
            }
            let is_denied = match &entry.rule.path {
                None => true,
                // The server-wide `*` of OPTIONS is not a path: no pattern can mean it.
                Some(_) if path == "*" => false,
                Some(pattern) => match &*parts {
                    Ok(parts) => pattern.matches_loosely(parts),
                    Err(why) => return Err(remedy::ambiguous_path(to, why)),
                },
            };
            if is_denied {
                return Err(remedy::denied_request(to, method, path, &entry.text));
            }
        }
        if is_of_models(to) {
            return Ok(RuleRef(MODEL_RULE.to_owned()));
        }
        let mut ambiguity = None;
        for entry in self.allowing(to).filter(|entry| entry.rule.methods.matches_strictly(method)) {
            let is_allowed = match &entry.rule.path {
                None => true,
                Some(pattern) => match &*parts {
                    Ok(parts) if pattern.matches_strictly(parts) && has_lookalike(parts) => {
                        ambiguity = Some(LOOKALIKE);
                        false
                    }
                    Ok(parts) => pattern.matches_strictly(parts),
                    Err(why) => {
                        ambiguity = Some(*why);
                        false
                    }
                },
            };
            if is_allowed {
                return Ok(entry.text.clone());
            }
        }
        Err(match ambiguity.filter(|_| path != "*") {
            Some(why) => remedy::ambiguous_path(to, why),
            None => remedy::no_rule_for_request(to, method, path),
        })
    }

    fn allowing<'a>(&'a self, to: &'a Destination) -> impl Iterator<Item = &'a Entry> {
        self.allow.iter().filter(|entry| entry.rule.host.allows(&to.host) && entry.rule.ports.allows(to.port))
    }

    fn denying<'a>(&'a self, to: &'a Destination) -> impl Iterator<Item = &'a Entry> {
        self.deny.iter().filter(|entry| entry.rule.host.denies(&to.host) && entry.rule.ports.denies(to.port))
    }

    /// Whether an allow rule names a special address: its range lies within the one that makes the address special. A rule about
    /// requests to an address opens nothing for names, because it isn't applied to their requests.
    fn names(&self, to: &Destination, address: IpAddr, special: Range) -> bool {
        let is_literal = to.host.address().is_some();
        self.allow.iter().any(|entry| {
            let names = |range: Range| range.contains(address) && range.is_within(special);
            entry.rule.host.range().is_some_and(names)
                && entry.rule.ports.allows(to.port)
                && (is_literal || !entry.rule.is_about_requests())
        })
    }

    fn no_rule(&self, to: &Destination) -> Refusal {
        let is_other_port = self.allow.iter().any(|entry| entry.rule.host.allows(&to.host));
        let has_any = self.allow.iter().any(|entry| entry.rule.host == HostPattern::Any);
        let is_hidden = has_any && to.host.name().is_some_and(is_internal);
        remedy::no_rule(to, is_other_port, is_hidden)
    }
}

impl TryFrom<EgressDraft> for Rules {
    type Error = Problem;

    fn try_from(draft: EgressDraft) -> Result<Self, Problem> {
        Self::new(draft)
    }
}

impl From<Rules> for EgressDraft {
    fn from(rules: Rules) -> Self {
        rules.draft
    }
}
