//! A held sandbox's network: decisions become events and denials, and rules can be replaced.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use saggar_domain::net::{EgressDraft, Flood, NetDecision, Summed};
use saggar_domain::{Code, ExecId, Problem};

use crate::control::{EventBody, Reply};
use crate::egress::{FromEgress, Network, Told, denial_of, dropped};

use super::connection::Role;
use super::exec::Exec;
use super::holder::Hold;
use super::moment::Moment;
use super::owners::Owners;

/// Messages of the egress process taken at once.
const MESSAGES_PER_ROUND: usize = 64;
/// How long the end of an exec waits for the decisions about what it was refused.
const SETTLE_PATIENCE: Duration = Duration::from_millis(500);
/// How long the last decisions may take.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// Decision events within [`WINDOW_SPAN`]. Those beyond are summed up by host: what a sandbox does must not fill the server's store.
pub(super) const EVENTS_MAX: u32 = 6000;
const WINDOW_SPAN: Duration = Duration::from_secs(60);

/// The network of a proxied sandbox, and who waits for it.
#[derive(Debug)]
pub(super) struct Proxied {
    pub(super) network: Network,
    /// Connections that wait for new rules, oldest first, and these rules.
    ruling: VecDeque<(u64, EgressDraft)>,
    /// Execs that have ended and wait for their last decisions, oldest first.
    settling: VecDeque<(u32, Moment)>,
    /// Answers to come that no exec waits for any more.
    abandoned: u32,
    owners: Owners,
}

/// Decision events of the current window.
#[derive(Debug)]
pub(super) struct Window {
    since: Moment,
    count: u32,
    /// Those beyond the maximum, told as sums when the window ends.
    flood: Flood,
}

impl Window {
    pub(super) fn new(now: Moment) -> Self {
        Self { since: now, count: 0, flood: Flood::default() }
    }

    /// When there is something to tell.
    pub(super) fn next(&self) -> Option<Moment> {
        (!self.flood.is_empty()).then_some(self.since + WINDOW_SPAN)
    }
}

impl Proxied {
    pub(super) fn new(network: Network) -> Self {
        Self { network, ruling: VecDeque::new(), settling: VecDeque::new(), abandoned: 0, owners: Owners::new() }
    }

    /// Whether an exec has ended and waits for its last decisions.
    pub(super) fn is_settling(&self, number: u32) -> bool {
        self.settling.iter().any(|(exec, _)| *exec == number)
    }

    /// When an exec is no longer waited for.
    pub(super) fn next(&self) -> Option<Moment> {
        self.settling.front().map(|(_, until)| *until)
    }
}

impl Hold {
    /// Replaces the rules. `None` if the answer comes later.
    pub(super) fn set_egress(&mut self, token: u64, egress: EgressDraft) -> Result<Option<Reply>, Problem> {
        let Some(proxied) = &mut self.proxied else {
            return Err(Problem::new(
                Code::Contradiction,
                format!(
                    "the network mode of the sandbox {} is {}, and rules need the mode proxied",
                    self.sandbox_id, self.spec.network
                ),
                "create a sandbox with network mode proxied",
            ));
        };
        if proxied.network.replace_rules(egress.clone())? {
            proxied.ruling.push_back((token, egress));
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.role = Role::Ruling;
            }
            return Ok(None);
        }
        self.adopt_rules(egress);
        Ok(Some(self.described()))
    }

    pub(super) fn hear_network(&mut self, now: Moment) {
        for _ in 0..MESSAGES_PER_ROUND {
            let Some(proxied) = &mut self.proxied else { return };
            match proxied.network.hear(Instant::now()) {
                Some(told) => self.note_network(told, now),
                None => return,
            }
        }
    }

    /// Reconnects if it is time, and waits no longer for decisions that don't come.
    pub(super) fn tick_network(&mut self, now: Moment) {
        if self.decisions_told.next().is_some_and(|until| now >= until) {
            self.begin_window(now);
        }
        let Some(proxied) = &mut self.proxied else { return };
        let told = proxied.network.advance(Instant::now());
        while proxied.settling.front().is_some_and(|(_, until)| now >= *until) {
            proxied.settling.pop_front();
            proxied.abandoned += 1;
        }
        if let Some(told) = told {
            self.note_network(told, now);
        }
    }

    /// The end of an exec is reported when the decisions about what it was refused are there.
    pub(super) fn settle_network(&mut self, number: u32, now: Moment) {
        if let Some(proxied) = &mut self.proxied
            && proxied.network.settle()
        {
            proxied.settling.push_back((number, now + SETTLE_PATIENCE));
        }
    }

    /// The sandbox is dead: its connections end, and are reported.
    pub(super) fn close_network(&mut self, now: Moment) {
        let Some(Proxied { network, owners, .. }) = self.proxied.take() else { return };
        let mut last = Vec::new();
        network.finish(END_PATIENCE, &mut |message| last.push(message));
        for message in last {
            // Connections that are announced only now are over, so no exec can be told.
            if let FromEgress::Decision(mut decision) = message {
                let owner = self.owner_of(&mut decision, Some(&owners));
                self.note_decision(*decision, owner, now);
            }
        }
        self.begin_window(now);
    }

    /// Tells what came too fast in the window before.
    fn begin_window(&mut self, now: Moment) {
        let mut before = std::mem::replace(&mut self.decisions_told, Window::new(now));
        let Summed { decisions, further } = before.flood.take();
        for decision in decisions {
            self.tell(EventBody::Decision { exec_id: None, decision: Box::new(decision) });
        }
        if further > 0 {
            self.tell_dropped(further);
        }
    }

    fn tell_dropped(&mut self, decisions: u64) {
        let message = format!("{decisions} decisions about the network came too fast to be reported");
        self.tell(EventBody::Denial { denial: dropped(message) });
    }

    fn note_network(&mut self, told: Told, now: Moment) {
        match told {
            Told::Message(FromEgress::Connected(connected)) => {
                if let Some(proxied) = &mut self.proxied {
                    proxied.owners.note(&connected, &self.execs, self.pid.as_raw_nonzero().get());
                }
            }
            Told::Message(FromEgress::Decision(mut decision)) => {
                let owner = self.owner_of(&mut decision, self.proxied.as_ref().map(|proxied| &proxied.owners));
                self.note_decision(*decision, owner, now);
            }
            Told::Message(FromEgress::Dropped { decisions }) => self.tell_dropped(decisions),
            // Answers that came late, and the reason why a session is about to close.
            Told::Message(_) => {}
            Told::Ruled => self.answer_rules(&Ok(())),
            Told::RulesRefused(problem) => {
                while self.has_ruling() {
                    self.answer_rules(&Err(problem.clone()));
                }
            }
            Told::Settled => {
                if let Some(proxied) = &mut self.proxied {
                    match proxied.abandoned.checked_sub(1) {
                        Some(left) => proxied.abandoned = left,
                        None => drop(proxied.settling.pop_front()),
                    }
                }
            }
            Told::Lost { is_for_good: _ } => {
                self.tell(EventBody::NetworkLost);
                // Nothing passes before a session with these rules is there.
                while self.has_ruling() {
                    self.answer_rules(&Ok(()));
                }
                if let Some(proxied) = &mut self.proxied {
                    proxied.settling.clear();
                    proxied.abandoned = 0;
                    proxied.owners.clear();
                }
            }
            Told::Restored => self.tell(EventBody::NetworkRestored),
        }
    }

    pub(super) fn note_decision(&mut self, decision: NetDecision, owner: Option<ExecId>, now: Moment) {
        if let Some(denial) = denial_of(&decision) {
            for exec in self.execs.iter_mut().filter(|exec| match &owner {
                Some(owner) => exec.id == *owner,
                None => is_asking(exec),
            }) {
                exec.refuse(&denial);
            }
        }
        if now.since(self.decisions_told.since) >= WINDOW_SPAN {
            self.begin_window(now);
        }
        let told = &mut self.decisions_told;
        told.count = told.count.saturating_add(1);
        if told.count <= EVENTS_MAX {
            return self.tell(EventBody::Decision { exec_id: owner, decision: Box::new(decision) });
        }
        told.flood.add(decision);
        if told.count == EVENTS_MAX + 1 {
            let message = format!(
                "more than {EVENTS_MAX} decisions about the network were made within a minute; further ones are summed up by host"
            );
            self.tell(EventBody::Denial { denial: dropped(message) });
        }
    }

    /// The exec that a decision is about. The number of its connection has served its purpose then.
    fn owner_of(&self, decision: &mut NetDecision, owners: Option<&Owners>) -> Option<ExecId> {
        let Some(connection) = decision.connection.take() else { return self.only_asking() };
        let exec = self.execs.get(owners?.of(connection)?)?;
        Some(exec.id.clone())
    }

    /// The only exec that can have asked just now, if there is only one: for a decision that is about no connection, such as one about a
    /// name.
    fn only_asking(&self) -> Option<ExecId> {
        let mut asking = self.execs.iter().filter(|exec| is_asking(exec));
        match (asking.next(), asking.next()) {
            (Some(only), None) => Some(only.id.clone()),
            _ => None,
        }
    }

    fn has_ruling(&self) -> bool {
        self.proxied.as_ref().is_some_and(|proxied| !proxied.ruling.is_empty())
    }

    /// Answers the connection that has waited longest for its rules.
    fn answer_rules(&mut self, outcome: &Result<(), Problem>) {
        let Some((token, egress)) = self.proxied.as_mut().and_then(|proxied| proxied.ruling.pop_front()) else {
            return;
        };
        let reply = match outcome {
            Ok(()) => {
                self.adopt_rules(egress);
                self.described()
            }
            Err(problem) => Reply::Error(problem.clone()),
        };
        if let Some(connection) = self.connections.get_mut(&token) {
            connection.say(&reply);
            connection.role = Role::Asking;
            self.revisit.push_back(token);
        }
    }

    /// The rules are in force.
    fn adopt_rules(&mut self, egress: EgressDraft) {
        self.spec.egress = egress;
        self.policy_hash = self.spec.policy_hash().to_string();
        self.tell(EventBody::RulesReplaced { policy_hash: self.policy_hash.clone() });
    }
}

/// Whether its processes may have used the network just now.
fn is_asking(exec: &Exec) -> bool {
    exec.is_live() && !exec.is_deserted() || exec.is_news
}
