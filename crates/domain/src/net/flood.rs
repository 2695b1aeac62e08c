//! Decisions that come too fast to be recorded one by one, summed up by host and verdict.

use std::collections::BTreeMap;

use crate::net::decision::{NetDecision, Verdict};

/// Hosts of each verdict that are told apart: a sandbox can name as many as it likes, and must not hide what was allowed.
const HOSTS_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
pub struct Flood {
    sums: BTreeMap<(Verdict, String), NetDecision>,
    further: u64,
}

/// What a flood consisted of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summed {
    /// One for each host and verdict, in their order.
    pub decisions: Vec<NetDecision>,
    /// Decisions about further hosts, which are only counted.
    pub further: u64,
}

impl Flood {
    pub fn add(&mut self, decision: NetDecision) {
        let key = (decision.verdict, decision.host.clone());
        if let Some(sum) = self.sums.get_mut(&key) {
            return join(sum, decision);
        }
        let hosts = self.sums.keys().filter(|(verdict, _)| *verdict == decision.verdict).count();
        if hosts < HOSTS_MAX {
            self.sums.insert(key, decision);
        } else {
            self.further = self.further.saturating_add(decision.times);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.sums.is_empty() && self.further == 0
    }

    /// What came since the last call.
    pub fn take(&mut self) -> Summed {
        let Self { sums, further } = std::mem::take(self);
        Summed { decisions: sums.into_values().collect(), further }
    }
}

/// What they don't have in common is left out. Secrets that any of them got are named.
fn join(sum: &mut NetDecision, other: NetDecision) {
    sum.times = sum.times.saturating_add(other.times);
    sum.bytes_up = sum.bytes_up.saturating_add(other.bytes_up);
    sum.bytes_down = sum.bytes_down.saturating_add(other.bytes_down);
    sum.duration_ms = sum.duration_ms.max(other.duration_ms);
    sum.address = sum.address.filter(|address| other.address == Some(*address));
    sum.method = sum.method.take().filter(|method| other.method.as_ref() == Some(method));
    sum.connection = sum.connection.filter(|connection| other.connection == Some(*connection));
    sum.path = sum.path.take().filter(|path| other.path.as_ref() == Some(path));
    sum.reason = sum.reason.take().filter(|reason| other.reason.as_ref() == Some(reason));
    for secret in other.secrets {
        if !sum.secrets.contains(&secret) {
            sum.secrets.push(secret);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::decision::Protocol;

    fn decision(host: &str, verdict: Verdict, path: &str) -> NetDecision {
        NetDecision {
            host: host.to_owned(),
            address: None,
            port: 443,
            protocol: Protocol::Https,
            method: Some("GET".to_owned()),
            path: Some(path.to_owned()),
            verdict,
            rule: "r".to_owned(),
            reason: None,
            secrets: Vec::new(),
            bytes_up: 1,
            bytes_down: 2,
            duration_ms: 3,
            connection: None,
            times: 1,
        }
    }

    #[test]
    fn decisions_are_summed_by_host_and_verdict() {
        let mut flood = Flood::default();
        for path in ["/1", "/2", "/3"] {
            flood.add(decision("a.test", Verdict::Denied, path));
        }
        flood.add(decision("a.test", Verdict::Allowed, "/only"));
        let allowed = decision("a.test", Verdict::Allowed, "/only");
        let denied =
            NetDecision { path: None, times: 3, bytes_up: 3, bytes_down: 6, ..decision("a.test", Verdict::Denied, "") };
        assert_eq!(flood.take(), Summed { decisions: vec![allowed, denied], further: 0 });
        assert!(flood.is_empty());
    }

    #[test]
    fn many_denied_hosts_are_bounded_and_hide_no_allowed_one() {
        let mut flood = Flood::default();
        for number in 0..HOSTS_MAX + 7 {
            flood.add(decision(&format!("n{number}.test"), Verdict::Denied, "/"));
        }
        flood.add(decision("a.test", Verdict::Allowed, "/"));
        let Summed { decisions, further } = flood.take();
        assert_eq!((decisions.len(), further), (HOSTS_MAX + 1, 7));
        assert_eq!(decisions[0].host, "a.test");
    }
}
