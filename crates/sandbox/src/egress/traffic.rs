//! What a sandbox did with its network, as the egress process reports it: events, denials, and a sum per host.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use saggar_domain::net::{HostTraffic, NetDecision, Verdict};
use saggar_domain::{Code, Denial, EventBody, Problem};
use saggar_supervisor::egress::{FromEgress, Refusals, denial_of, dropped, refused};

use crate::report::Denials;

/// Maximum number of hosts that are told apart, for allowed and for denied access each; the rest are summed up.
const HOSTS_MAX: usize = 256;
/// Maximum number of decision events of one exec, for each verdict. The sums go on.
const EVENTS_MAX: u32 = 10_000;
/// Maximum number of different refusals among the denials.
const REFUSALS_MAX: u32 = 32;
/// Stands for all hosts beyond the maximum.
const OTHERS: &str = "others";

/// Allowed and denied access have bounds of their own: a sandbox can provoke refusals at will, and they must not crowd out
/// what was allowed.
#[derive(Debug)]
pub(crate) struct Traffic {
    allowed: Account,
    denied: Account,
    refusals: Refusals,
    /// What is wrong with the recording.
    fault: Option<String>,
}

/// Decisions with the same verdict.
#[derive(Debug, Default)]
struct Account {
    hosts: BTreeMap<(String, u16), HostTraffic>,
    told: u32,
}

impl Default for Traffic {
    fn default() -> Self {
        Self {
            allowed: Account::default(),
            denied: Account::default(),
            refusals: Refusals::new(REFUSALS_MAX),
            fault: None,
        }
    }
}

impl Traffic {
    pub(crate) fn hear(&mut self, message: FromEgress, denials: &mut Denials, observe: &mut dyn FnMut(EventBody)) {
        match message {
            FromEgress::Decision(decision) => self.take(*decision, denials, observe),
            FromEgress::Dropped { decisions } => denials
                .add(dropped(format!("{decisions} decisions about the network came too fast to be reported")), observe),
            FromEgress::Failed(problem) => denials.add(refused("egress/failed", problem.message), observe),
            FromEgress::RecordingFailed { reason } => self.blame(format!("the recording is incomplete: {reason}")),
            // Answers that came late, questions where nobody answers them, and connections, which aren't asked for here.
            FromEgress::Opened { .. }
            | FromEgress::Listening {}
            | FromEgress::Ruled {}
            | FromEgress::Bound {}
            | FromEgress::Recording {}
            | FromEgress::Replaying { .. }
            | FromEgress::Question { .. }
            | FromEgress::Connected(_)
            | FromEgress::Settled {}
            | FromEgress::ModelsKnown {}
            | FromEgress::Managing { .. }
            | FromEgress::Retired {} => {}
        }
    }

    /// The egress process is gone.
    pub(crate) fn lose(&mut self, is_for_good: bool, denials: &mut Denials, observe: &mut dyn FnMut(EventBody)) {
        let message = match is_for_good {
            true => "the egress process ended, and no other one was started; the sandbox had no network from then on",
            false => {
                "the egress process ended; connections were cut, and the sandbox had no network until another one was started"
            }
        };
        denials.add(refused("egress/lost", message.to_owned()), observe);
    }

    /// Something is wrong with the recording.
    pub(crate) fn blame(&mut self, fault: String) {
        self.fault.get_or_insert(fault);
    }

    /// What the result has to say about the recording.
    pub(crate) fn problem(&mut self) -> Option<Problem> {
        self.fault.take().map(|fault| Problem::new(Code::Stream, fault, "record again"))
    }

    /// The sums, by host and port.
    pub(crate) fn by_host(self) -> Vec<HostTraffic> {
        let mut hosts = self.allowed.hosts;
        for (key, denied) in self.denied.hosts {
            match hosts.entry(key) {
                Entry::Vacant(place) => {
                    place.insert(denied);
                }
                Entry::Occupied(mut allowed) => allowed.get_mut().join(&denied),
            }
        }
        hosts.into_values().collect()
    }

    fn take(&mut self, decision: NetDecision, denials: &mut Denials, observe: &mut dyn FnMut(EventBody)) {
        let (account, verdict) = match decision.verdict {
            Verdict::Allowed => (&mut self.allowed, "allowed"),
            Verdict::Denied => (&mut self.denied, "denied"),
        };
        account.add(&decision);
        match account.told.cmp(&(EVENTS_MAX + 1)) {
            std::cmp::Ordering::Less => observe(EventBody::Decision(decision.clone())),
            std::cmp::Ordering::Equal => observe(EventBody::Denial(dropped(format!(
                "the network was {verdict} more than {EVENTS_MAX} times; further such decisions are only counted"
            )))),
            std::cmp::Ordering::Greater => {}
        }
        if let Some(denial) = denial_of(&decision) {
            self.deny(denial, denials, observe);
        }
    }
}

impl Account {
    fn add(&mut self, decision: &NetDecision) {
        let key = (decision.host.clone(), decision.port);
        let key =
            if self.hosts.len() < HOSTS_MAX || self.hosts.contains_key(&key) { key } else { (OTHERS.to_owned(), 0) };
        let (host, port) = key.clone();
        self.hosts.entry(key).or_insert_with(|| HostTraffic::new(host, port)).add(decision);
        self.told = self.told.saturating_add(1);
    }
}

impl Traffic {
    fn deny(&mut self, denial: Denial, denials: &mut Denials, observe: &mut dyn FnMut(EventBody)) {
        let is_known = denials.kept.contains(&denial);
        if let Some(denial) = self.refusals.admit(denial, is_known) {
            denials.add(denial, observe);
        }
    }
}

#[cfg(test)]
mod tests {
    use saggar_domain::net::Protocol;

    use super::*;

    fn decision(host: String, verdict: Verdict) -> FromEgress {
        FromEgress::Decision(Box::new(NetDecision {
            host,
            address: None,
            port: 443,
            protocol: Protocol::Tls,
            method: None,
            path: None,
            verdict,
            rule: "*".to_owned(),
            reason: None,
            bytes_up: 1,
            bytes_down: 2,
            duration_ms: 0,
            connection: None,
            secrets: Vec::new(),
            times: 1,
        }))
    }

    #[test]
    fn refusals_do_not_crowd_out_what_was_allowed() {
        let (mut traffic, mut denials) = (Traffic::default(), Denials::default());
        let mut events = Vec::new();
        let mut hear =
            |traffic: &mut Traffic, message| traffic.hear(message, &mut denials, &mut |event| events.push(event));
        for number in 0..=EVENTS_MAX {
            hear(&mut traffic, decision(format!("n{number}.denied.test"), Verdict::Denied));
        }
        for verdict in [Verdict::Allowed, Verdict::Denied] {
            hear(&mut traffic, decision("good.test".to_owned(), verdict));
        }

        let is_event =
            |event: &EventBody, wanted: &str| matches!(event, EventBody::Decision(told) if told.host == wanted);
        assert_eq!(events.iter().filter(|event| is_event(event, "good.test")).count(), 1);
        let told = events.iter().filter(|event| matches!(event, EventBody::Decision(_))).count();
        assert_eq!(told, EVENTS_MAX as usize + 1);

        let hosts = traffic.by_host();
        assert_eq!(hosts.len(), HOSTS_MAX + 2);
        let sum = |host: &str| hosts.iter().find(|known| known.host == host).map(|sum| (sum.allowed, sum.denied));
        assert_eq!(sum("good.test"), Some((1, 0)));
        assert_eq!(sum(OTHERS), Some((0, u64::from(EVENTS_MAX) + 2 - HOSTS_MAX as u64)));
    }

    #[test]
    fn a_host_that_was_allowed_and_denied_is_one_entry() {
        let (mut traffic, mut denials) = (Traffic::default(), Denials::default());
        for verdict in [Verdict::Denied, Verdict::Allowed, Verdict::Denied] {
            traffic.hear(decision("a.test".to_owned(), verdict), &mut denials, &mut |_| {});
        }
        let expected =
            HostTraffic { host: "a.test".to_owned(), port: 443, allowed: 1, denied: 2, bytes_up: 3, bytes_down: 6 };
        assert_eq!(traffic.by_host(), [expected]);
    }
}
