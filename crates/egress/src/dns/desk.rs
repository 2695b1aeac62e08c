//! Decides what a question gets. Does no IO and reads no clock, so UDP, TCP and tests share it.
//!
//! What is reported: a denied name, once, for the first [`DENIALS_MAX`] names; the first name under each of a few allowed
//! domains that looks like data; and once each that the rate was exceeded and that the pool is full.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use saggar_domain::net::{Destination, Host, HostName, NetDecision, Passage, Protocol, Refusal, Rules, Verdict};

use crate::dns::answer::{self, Outcome, Record};
use crate::dns::question::{Asked, Question};
use crate::dns::suspicion::Suspects;
use crate::names::{Assigned, Names};
use crate::rate::Rate;

/// Questions a second, and at once. A program that opens a thousand connections a second asks twice as often; nothing
/// leaves the machine, so this only protects our own time.
const QUESTIONS_PER_SECOND: u32 = 5_000;
const QUESTIONS_BURST: u32 = 10_000;
const DENIALS_MAX: usize = 1_024;
const DNS_PORT: u16 = 53;

/// What the desk needs of its session. Neither call may block.
pub trait Session: Send + Sync + 'static {
    /// The rules of now.
    fn rules(&self) -> Arc<Rules>;
    /// Takes the record of a decision, or counts it as lost.
    fn record(&self, decision: NetDecision);
    /// Shared with the other ways in which names arrive.
    fn suspects(&self) -> &Suspects;
}

#[derive(Debug)]
pub struct Desk<S> {
    names: Arc<Names>,
    session: Arc<S>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rate: Rate,
    denials: usize,
    told_rate: bool,
    told_full: bool,
}

impl<S: Session> Desk<S> {
    pub fn new(names: Arc<Names>, session: Arc<S>) -> Self {
        let state = State {
            rate: Rate::new(QUESTIONS_PER_SECOND, QUESTIONS_BURST),
            denials: 0,
            told_rate: false,
            told_full: false,
        };
        Self { names, session, state: Mutex::new(state) }
    }

    /// The reply to a message, if there is to be one.
    pub fn answer(&self, message: &[u8], now: Instant) -> Option<Vec<u8>> {
        let question = match Question::parse(message) {
            Ok(question) => question,
            Err(error) => return answer::refuse(&error),
        };
        let (outcome, record) = self.decide(&question, now);
        Some(answer::write(&question, outcome, record))
    }

    fn decide(&self, question: &Question<'_>, now: Instant) -> (Outcome, Record) {
        if !self.state().rate.take(now) {
            self.tell_once(|state| &mut state.told_rate, &question_rate());
            return (Outcome::Refused, None);
        }
        let v4 = match question.asked {
            Asked::A => true,
            Asked::Aaaa => false,
            Asked::Other(_) => return (Outcome::Ok, None),
        };
        let Some(Host::Name(name)) = question.text().and_then(|text| Host::parse(&text).ok()) else {
            return (Outcome::NoSuchName, None);
        };
        let address = if is_localhost(&name) {
            if v4 { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { IpAddr::V6(Ipv6Addr::LOCALHOST) }
        } else {
            let Ok(assigned) = self.names.assign(&name) else {
                self.tell_once(|state| &mut state.told_full, &pool_full());
                return (Outcome::ServerFailure, None);
            };
            if let Assigned::New(_) = assigned {
                self.report(&name);
            }
            let fake = assigned.fake();
            if v4 { fake.v4.into() } else { fake.v6.into() }
        };
        (Outcome::Ok, Some(address))
    }

    /// A name is seen for the first time: a denied one is a decision, and so is one that looks like data.
    fn report(&self, name: &HostName) {
        let rules = self.session.rules();
        if !rules.resolves(name) {
            let count = {
                let mut state = self.state();
                state.denials = state.denials.saturating_add(1);
                state.denials
            };
            if count <= DENIALS_MAX {
                self.record(name.to_string(), Verdict::Denied, denial(&rules, name));
            } else if count == DENIALS_MAX + 1 {
                self.record(name.to_string(), Verdict::Denied, too_many_denials());
            }
        } else if let Some(report) = self.session.suspects().notice(&rules, name) {
            self.session.record(report);
        }
    }

    fn tell_once(&self, told: impl Fn(&mut State) -> &mut bool, refusal: &Refusal) {
        if !std::mem::replace(told(&mut self.state()), true) {
            self.record(String::new(), Verdict::Denied, refusal.clone());
        }
    }

    fn record(&self, host: String, verdict: Verdict, refusal: Refusal) {
        self.session.record(NetDecision {
            host,
            address: None,
            port: DNS_PORT,
            protocol: Protocol::Dns,
            method: None,
            path: None,
            verdict,
            rule: refusal.rule,
            reason: Some(refusal.message),
            secrets: Vec::new(),
            bytes_up: 0,
            bytes_down: 0,
            duration_ms: 0,
            connection: None,
            times: 1,
        });
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// RFC 6761, 6.3.
fn is_localhost(name: &HostName) -> bool {
    name.as_str() == "localhost" || name.as_str().ends_with(".localhost")
}

/// The refusal that a connection to the name would get.
fn denial(rules: &Rules, name: &HostName) -> Refusal {
    match rules.connection(&Destination { host: Host::Name(name.clone()), port: 443 }) {
        Passage::Denied(refusal) => refusal,
        Passage::Inspect | Passage::Tunnel { .. } | Passage::Raw { .. } => {
            Refusal::new("egress/default", format!("no rule allows {name} to be looked up"), "allow the name")
        }
    }
}

fn too_many_denials() -> Refusal {
    let message = format!("{DENIALS_MAX} denied names were looked up; further ones are denied without a record");
    Refusal::new("egress/dns-denials", message, "look for a program that tries out names")
}

fn question_rate() -> Refusal {
    let message = format!("the sandbox asks its DNS more than {QUESTIONS_PER_SECOND} questions a second");
    Refusal::new("egress/dns-rate", message, "look for a program that asks in a loop")
}

fn pool_full() -> Refusal {
    let message = format!("the sandbox has looked up {} names; further names get no address", crate::names::NAMES_MAX);
    Refusal::new("egress/dns-names", message, "start another sandbox, or look for a program that tries out names")
}
