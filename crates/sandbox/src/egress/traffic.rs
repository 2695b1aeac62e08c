//! What a sandbox did with its network, as the egress process reports it: events, denials, and a sum per host.

use std::collections::BTreeMap;

use saggar_domain::net::{HostTraffic, NetDecision, Verdict};
use saggar_domain::{Denial, DenialCode, EventBody};
use saggar_supervisor::egress::FromEgress;

use crate::report::Denials;

/// Maximum number of hosts that are told apart; the rest are summed up.
const HOSTS_MAX: usize = 256;
/// Maximum number of decision events of one exec. The sums go on.
const EVENTS_MAX: u32 = 10_000;
/// Maximum number of different refusals among the denials.
const REFUSALS_MAX: u32 = 32;
/// Stands for all hosts beyond the maximum.
const OTHERS: &str = "others";

#[derive(Debug, Default)]
pub(crate) struct Traffic {
    hosts: BTreeMap<(String, u16), HostTraffic>,
    told: u32,
    /// Kinds of refusals.
    refusals: u32,
}

impl Traffic {
    pub(crate) fn hear(&mut self, message: FromEgress, denials: &mut Denials, observe: &mut dyn FnMut(EventBody)) {
        match message {
            FromEgress::Decision(decision) => self.take(*decision, denials, observe),
            FromEgress::Dropped { decisions } => denials
                .add(dropped(format!("{decisions} decisions about the network came too fast to be reported")), observe),
            FromEgress::Failed(problem) => denials.add(refused("egress/failed", problem.message), observe),
            // Answers that came late.
            FromEgress::Opened { .. }
            | FromEgress::Listening {}
            | FromEgress::Ruled {}
            | FromEgress::Managing { .. }
            | FromEgress::Retired {} => {}
        }
    }

    /// The egress process is gone.
    pub(crate) fn lose(&mut self, denials: &mut Denials, observe: &mut dyn FnMut(EventBody)) {
        let message = "the egress process ended; the sandbox had no network from then on";
        denials.add(refused("egress/lost", message.to_owned()), observe);
    }

    /// The sums, by host and port.
    pub(crate) fn by_host(self) -> Vec<HostTraffic> {
        self.hosts.into_values().collect()
    }

    fn take(&mut self, decision: NetDecision, denials: &mut Denials, observe: &mut dyn FnMut(EventBody)) {
        let key = (decision.host.clone(), decision.port);
        let key =
            if self.hosts.len() < HOSTS_MAX || self.hosts.contains_key(&key) { key } else { (OTHERS.to_owned(), 0) };
        let (host, port) = key.clone();
        self.hosts.entry(key).or_insert_with(|| HostTraffic::new(host, port)).add(&decision);
        self.told = self.told.saturating_add(1);
        match self.told.cmp(&(EVENTS_MAX + 1)) {
            std::cmp::Ordering::Less => observe(EventBody::Decision(decision.clone())),
            std::cmp::Ordering::Equal => observe(EventBody::Denial(dropped(format!(
                "more than {EVENTS_MAX} decisions about the network were made; further ones are only counted"
            )))),
            std::cmp::Ordering::Greater => {}
        }
        if decision.verdict == Verdict::Denied {
            let reason = decision.reason.unwrap_or_else(|| format!("{} was refused", decision.host));
            self.deny(refused(&decision.rule, reason), denials, observe);
        }
    }
}

impl Traffic {
    /// The sandbox chooses what these denials say, so they have a bound of their own: they must not crowd out others.
    fn deny(&mut self, denial: Denial, denials: &mut Denials, observe: &mut dyn FnMut(EventBody)) {
        if !denials.kept.contains(&denial) {
            self.refusals = self.refusals.saturating_add(1);
        }
        match self.refusals.cmp(&(REFUSALS_MAX + 1)) {
            std::cmp::Ordering::Less => denials.add(denial, observe),
            std::cmp::Ordering::Equal => denials.add(
                dropped(format!(
                    "more than {REFUSALS_MAX} kinds of network access were refused; the rest are only counted"
                )),
                observe,
            ),
            std::cmp::Ordering::Greater => {}
        }
    }
}

fn refused(rule: &str, message: String) -> Denial {
    Denial { code: DenialCode::NetworkRefused, rule: rule.to_owned(), message }
}

fn dropped(message: String) -> Denial {
    Denial { code: DenialCode::DenialsDropped, rule: "events/decisions".to_owned(), message }
}
