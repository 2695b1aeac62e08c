//! A session that keeps what is recorded.

use std::sync::{Arc, Mutex};

use saggar_domain::net::{EgressDraft, NetDecision, Rules};
use saggar_egress::dns::{Session, Suspects};

pub struct Kept {
    rules: Mutex<Arc<Rules>>,
    decisions: Mutex<Vec<NetDecision>>,
    suspects: Suspects,
}

impl Kept {
    pub fn new(allow: &[&str], deny: &[&str]) -> Arc<Self> {
        Arc::new(Self {
            rules: Mutex::new(Arc::new(rules(allow, deny))),
            decisions: Mutex::default(),
            suspects: Suspects::default(),
        })
    }

    /// Host, verdict and rule of each decision since the last call.
    pub fn take(&self) -> Vec<(String, String, String)> {
        let decisions = std::mem::take(&mut *self.decisions.lock().unwrap());
        decisions.into_iter().map(|decision| (decision.host, decision.verdict.to_string(), decision.rule)).collect()
    }
}

impl Session for Kept {
    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.lock().unwrap())
    }

    fn record(&self, decision: NetDecision) {
        self.decisions.lock().unwrap().push(decision);
    }

    fn suspects(&self) -> &Suspects {
        &self.suspects
    }
}

pub fn rules(allow: &[&str], deny: &[&str]) -> Rules {
    let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    Rules::new(EgressDraft::of(parse(allow), parse(deny))).unwrap()
}
