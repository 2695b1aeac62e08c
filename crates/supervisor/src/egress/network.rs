//! The network of a proxied sandbox, as its supervisor holds it: the session, and what it takes to open another one.
//!
//! ```text
//!             begin          trust, serve            the process died
//!  (nothing) ───────▶ Opening ───────────▶ Serving ──────────────────▶ Lost ──▶ Closed (no more tries)
//!                        ▲   ──opened──▶ HandingOver ──listening──▶ Serving      │
//!                        └───────────────────────────────────────────────────────┘ after a while
//! ```
//! The supervisor keeps the gates. While there is no session, connections wait there, or are refused when too many wait; nothing goes
//! another way. A new session has the same rules and another authority, so the trust files inside are replaced before it gets the gates.
//!
//! Only the first session is waited for. Afterwards nothing here blocks.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use saggar_domain::net::{EgressDraft, Rules};
use saggar_domain::secret::SecretName;
use saggar_domain::{Problem, SandboxId};
use saggar_jail::{Gates, Probes, Rule};

use super::message::{EGRESS, FromEgress, GateCounts, Open};
use super::session::{Heard, Session, Tape};
use super::trust::{Trust, TrustFiles};
use super::{self_test, upstream, wire};

/// How long a new session may take to be ready.
const OPENING: Duration = Duration::from_secs(10);
/// Until the first try after a loss, and between the later ones at most.
const FIRST_DELAY: Duration = Duration::from_millis(250);
const LAST_DELAY: Duration = Duration::from_secs(4);

/// Where sessions come from.
pub trait Source: std::fmt::Debug {
    /// A connection to an egress process.
    fn connect(&mut self) -> Result<Session, Problem>;

    /// How long to wait before the next try, after so many that failed since the network was lost. `None` means never again.
    fn delay(&mut self, failed: u32) -> Option<Duration>;
}

#[derive(Debug)]
pub struct Network {
    // Before the source: a child ends when its session does, and is waited for when the source is dropped.
    state: State,
    sandbox_id: SandboxId,
    rules: EgressDraft,
    /// For each change of the rules that has no answer yet: the rules before it.
    unanswered: VecDeque<EgressDraft>,
    /// How many sessions there were before this one.
    generation: u32,
    secrets: SessionSecrets,
    /// What the first session told, until it is installed.
    trust: Option<Trust>,
    kept: Option<Kept>,
    /// Whether it is recorded, or answered from a recording. Another session would not be.
    is_taped: bool,
    wants: Wants,
    source: Box<dyn Source>,
}

/// What the supervisor wants of the session, beside its rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants {
    /// To hear of questions about hosts that no rule allows: someone answers them.
    pub questions: bool,
    /// To hear of every connection, to find the exec that made it.
    pub connections: bool,
    /// That programs can call a server's models.
    pub models: bool,
}

/// Secrets of the sessions: those that they begin with, from files that only the egress process reads; or those that a server binds.
#[derive(Debug, Default)]
pub struct SessionSecrets {
    names: Vec<SecretName>,
    files: Vec<OwnedFd>,
    /// As the first session told them.
    placeholders: Vec<String>,
    /// Whether each session waits for a server to bind them.
    come_from_server: bool,
}

impl SessionSecrets {
    pub fn new(names: Vec<SecretName>, files: Vec<OwnedFd>) -> Self {
        Self { names, files, ..Self::default() }
    }

    /// None at first. If the sandbox uses any, a server binds them to each of its sessions.
    pub fn of_server(are_used: bool) -> Self {
        Self { come_from_server: are_used, ..Self::default() }
    }
}

/// What outlives a session.
#[derive(Debug)]
struct Kept {
    counts: GateCounts,
    gates: Vec<OwnedFd>,
    files: TrustFiles,
}

#[derive(Debug)]
enum State {
    /// `open` was sent.
    Opening {
        session: Session,
        until: Instant,
    },
    /// The gates were sent.
    HandingOver {
        session: Session,
        until: Instant,
    },
    Serving {
        session: Session,
    },
    Lost {
        failed: u32,
        retry: Instant,
    },
    /// For good.
    Closed,
}

/// What a supervisor hears of its network.
#[derive(Debug)]
pub enum Told {
    /// A decision, or another message that is not an answer.
    Message(FromEgress),
    /// The oldest change of the rules is in force.
    Ruled,
    /// Every change of the rules that had no answer was refused. The rules before them stay.
    RulesRefused(Problem),
    /// The answer to [`Network::settle`].
    Settled,
    /// The egress process is gone, and with it the network. Changes of the rules that had no answer apply to the next session.
    Lost { is_for_good: bool },
    /// Another session serves the sandbox.
    Restored,
}

impl Network {
    /// Opens the first session, and doesn't wait for it to be ready.
    pub fn begin(
        mut source: Box<dyn Source>,
        sandbox_id: SandboxId,
        rules: EgressDraft,
        secrets: SessionSecrets,
        wants: Wants,
    ) -> Result<Self, Problem> {
        let mut session = source.connect()?;
        open(&mut session, &sandbox_id, &rules, &secrets, 0, wants)?;
        let state = State::Opening { session, until: Instant::now() + OPENING };
        Ok(Self {
            source,
            sandbox_id,
            rules,
            unanswered: VecDeque::new(),
            generation: 0,
            secrets,
            trust: None,
            kept: None,
            is_taped: false,
            wants,
            state,
        })
    }

    /// Waits until the first session is ready.
    fn await_session(&mut self) -> Result<(), Problem> {
        if self.trust.is_some() {
            return Ok(());
        }
        let Some(session) = self.session() else { return Err(wire::gone("it ended")) };
        let trust = session.certificate().map(Trust::new)?;
        self.secrets.placeholders = session.placeholders().to_vec();
        self.trust = Some(trust);
        Ok(())
    }

    /// What programs get in place of the secrets, in their order. Known once the network is served, and the same for every session.
    pub fn placeholders(&self) -> &[String] {
        &self.secrets.placeholders
    }

    /// Waits for the session, installs its certificate, hands over the gates, and tries whether they keep what they promise. From here
    /// on the sandbox has its network. `files` are those of [`super::trust_files`].
    pub fn serve(&mut self, gates: Gates, files: Vec<OwnedFd>) -> Result<(), Problem> {
        self.await_session()?;
        let Gates { tcp, proxy, dns_udp, dns_tcp, probes } = gates;
        let counts = GateCounts { tcp: tcp.len(), proxy: 1, dns_udp: dns_udp.len(), dns_tcp: dns_tcp.len() };
        let gates: Vec<OwnedFd> = tcp.into_iter().chain([proxy]).chain(dns_udp).chain(dns_tcp).collect();
        let kept = self.kept.insert(Kept { counts, gates, files: TrustFiles(files) });
        if let Some(trust) = self.trust.take() {
            kept.install(&trust)?;
        }
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Opening { mut session, .. } => {
                session.hand_over(kept.counts, &kept.gates())?;
                try_out(&mut session, &self.rules, probes)?;
                self.state = State::Serving { session };
                Ok(())
            }
            State::HandingOver { .. } | State::Serving { .. } | State::Lost { .. } | State::Closed => {
                Err(wire::gone("it ended"))
            }
        }
    }

    /// Hands over a recording, before the gates. Returns what is wrong with one that can be used nevertheless. If this session is lost, it
    /// is the last one: nothing may pass beside the recording.
    pub fn hand_tape(&mut self, tape: &Tape) -> Result<Option<String>, Problem> {
        self.is_taped = true;
        self.await_session()?;
        self.session().map_or_else(|| Err(wire::gone("it ended")), |session| session.hand_tape(tape))
    }

    /// The sandbox uses secrets of a server. The session that is open gets them before any program runs; each later one waits for them.
    pub fn use_server_secrets(&mut self) {
        self.secrets.come_from_server = true;
    }

    pub fn rules(&self) -> &EgressDraft {
        &self.rules
    }

    /// Replaces the rules. Returns whether an answer comes; without a session they apply to the next one, and nothing passes until then.
    pub fn replace_rules(&mut self, rules: EgressDraft) -> Result<bool, Problem> {
        Rules::new(rules.clone())?;
        let is_sent = match self.session() {
            Some(session) => session.send_rules(rules.clone()).is_ok(),
            None => false,
        };
        let before = std::mem::replace(&mut self.rules, rules);
        if is_sent {
            self.unanswered.push_back(before);
        }
        Ok(is_sent)
    }

    /// Asks for the decisions about everything that a program has seen refused. Returns whether an answer comes.
    pub fn settle(&mut self) -> bool {
        match &mut self.state {
            State::Serving { session } => session.settle().is_ok(),
            State::Opening { .. } | State::HandingOver { .. } | State::Lost { .. } | State::Closed => false,
        }
    }

    /// The session, to be polled.
    pub fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Opening { session, .. } | State::HandingOver { session, .. } | State::Serving { session } => {
                Some(session.as_fd())
            }
            State::Lost { .. } | State::Closed => None,
        }
    }

    /// When to call [`Self::advance`].
    pub fn next(&self) -> Option<Instant> {
        match self.state {
            State::Opening { until, .. } | State::HandingOver { until, .. } => Some(until),
            State::Lost { retry, .. } => Some(retry),
            State::Serving { .. } | State::Closed => None,
        }
    }

    /// Tries to open another session, if it is time.
    pub fn advance(&mut self, now: Instant) -> Option<Told> {
        match self.state {
            State::Lost { failed, retry } if now >= retry => match self.reopen() {
                Ok(session) => {
                    self.state = State::Opening { session, until: now + OPENING };
                    None
                }
                Err(_) => self.wait(failed + 1, now),
            },
            State::Opening { until, .. } | State::HandingOver { until, .. } if now >= until => self.wait(1, now),
            State::Opening { .. }
            | State::HandingOver { .. }
            | State::Serving { .. }
            | State::Lost { .. }
            | State::Closed => None,
        }
    }

    /// The next thing that happened; `None` if nothing has.
    pub fn hear(&mut self, now: Instant) -> Option<Told> {
        loop {
            let message = match self.session()?.hear() {
                Heard::Message(message) => message,
                Heard::Nothing => return None,
                Heard::Closed => return self.lose(now),
            };
            match message {
                FromEgress::Opened { ca_pem, .. } => {
                    if self.hand_over(ca_pem).is_err() {
                        return self.lose(now);
                    }
                }
                FromEgress::Listening {} => {
                    if let State::HandingOver { session, .. } = std::mem::replace(&mut self.state, State::Closed) {
                        self.state = State::Serving { session };
                        return Some(Told::Restored);
                    }
                    return self.lose(now);
                }
                FromEgress::Ruled {} => {
                    if self.unanswered.pop_front().is_some() {
                        return Some(Told::Ruled);
                    }
                }
                FromEgress::Settled {} => return Some(Told::Settled),
                FromEgress::Failed(problem) => match self.unanswered.pop_front() {
                    Some(before) => {
                        self.rules = before;
                        self.unanswered.clear();
                        return Some(Told::RulesRefused(problem));
                    }
                    None => return Some(Told::Message(FromEgress::Failed(problem))),
                },
                other => return Some(Told::Message(other)),
            }
        }
    }

    /// Lets the session end, without waiting for it.
    pub fn close(&mut self) {
        if let Some(session) = self.session() {
            session.close();
        }
    }

    /// Ends the session, and takes its last decisions.
    pub fn finish(self, patience: Duration, take: &mut dyn FnMut(FromEgress)) {
        match self.state {
            State::Opening { session, .. } | State::HandingOver { session, .. } | State::Serving { session } => {
                session.finish(patience, take);
            }
            State::Lost { .. } | State::Closed => {}
        }
    }

    /// The session in force, or on its way.
    pub fn session(&mut self) -> Option<&mut Session> {
        match &mut self.state {
            State::Opening { session, .. } | State::HandingOver { session, .. } | State::Serving { session } => {
                Some(session)
            }
            State::Lost { .. } | State::Closed => None,
        }
    }

    fn reopen(&mut self) -> Result<Session, Problem> {
        let mut session = self.source.connect()?;
        self.generation += 1;
        open(&mut session, &self.sandbox_id, &self.rules, &self.secrets, self.generation, self.wants)?;
        Ok(session)
    }

    /// Makes the sandbox trust the session that was opened, and hands over the gates.
    fn hand_over(&mut self, ca_pem: String) -> Result<(), Problem> {
        let (State::Opening { mut session, until }, Some(kept)) =
            (std::mem::replace(&mut self.state, State::Closed), &self.kept)
        else {
            return Err(wire::gone("it said something unexpected"));
        };
        kept.install(&Trust::new(ca_pem))?;
        session.send_gates(kept.counts, &kept.gates())?;
        self.state = State::HandingOver { session, until };
        Ok(())
    }

    /// The session is over.
    fn lose(&mut self, now: Instant) -> Option<Told> {
        let was_serving = matches!(self.state, State::Serving { .. });
        let told = self.wait(u32::from(!was_serving), now);
        match (was_serving, told) {
            (true, None) => Some(Told::Lost { is_for_good: false }),
            (_, told) => told,
        }
    }

    /// Until the next try.
    fn wait(&mut self, failed: u32, now: Instant) -> Option<Told> {
        self.unanswered.clear();
        match self.source.delay(failed).filter(|_| !self.is_taped) {
            Some(delay) => {
                self.state = State::Lost { failed, retry: now + delay };
                None
            }
            None => {
                self.state = State::Closed;
                Some(Told::Lost { is_for_good: true })
            }
        }
    }
}

impl Kept {
    fn install(&self, trust: &Trust) -> Result<(), Problem> {
        let replaced = self.files.replace(trust);
        replaced.map_err(|errno| wire::gone(&format!("its certificate can't be installed: {errno}")))
    }

    fn gates(&self) -> Vec<BorrowedFd<'_>> {
        self.gates.iter().map(AsFd::as_fd).collect()
    }
}

/// Doubles with each try that failed.
pub fn backoff(failed: u32) -> Duration {
    FIRST_DELAY.saturating_mul(1 << failed.min(10)).min(LAST_DELAY)
}

fn open(
    session: &mut Session,
    sandbox_id: &SandboxId,
    rules: &EgressDraft,
    secrets: &SessionSecrets,
    generation: u32,
    wants: Wants,
) -> Result<(), Problem> {
    let SessionSecrets { names, files, placeholders, come_from_server } = secrets;
    for file in files {
        // The session before has read them to their end. What can't be rewound is empty, and then refused.
        let _ = rustix::fs::seek(file, rustix::fs::SeekFrom::Start(0));
    }
    let message = Open {
        v: EGRESS,
        sandbox_id: sandbox_id.clone(),
        egress: rules.clone(),
        upstream: upstream::of_the_host()?,
        generation,
        asks: wants.questions,
        attributes: wants.connections,
        secrets: names.clone(),
        placeholders: placeholders.clone(),
        awaits_secrets: *come_from_server,
        models: wants.models,
    };
    let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    session.open(message, &files)
}

fn try_out(session: &mut Session, rules: &EgressDraft, probes: Probes) -> Result<(), Problem> {
    if !Rule::NetworkSelfTest.is_on() {
        return Ok(());
    }
    self_test::run(session, &Rules::new(rules.clone())?, probes)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use saggar_domain::Code;

    use super::*;
    use crate::egress::ToEgress;

    /// The other ends of the sessions, newest last.
    type Peers = Rc<RefCell<Vec<OwnedFd>>>;

    #[derive(Debug)]
    struct Scripted {
        peers: Peers,
        tries: u32,
    }

    impl Source for Scripted {
        fn connect(&mut self) -> Result<Session, Problem> {
            let (session, theirs) = Session::pair().map_err(|errno| wire::gone(&errno.to_string()))?;
            self.peers.borrow_mut().push(theirs);
            Ok(session)
        }

        fn delay(&mut self, _failed: u32) -> Option<Duration> {
            self.tries = self.tries.checked_sub(1)?;
            Some(Duration::ZERO)
        }
    }

    fn draft(allow: &str) -> EgressDraft {
        EgressDraft::of(vec![allow.parse().unwrap()], Vec::new())
    }

    /// A network that serves, as after [`Network::serve`].
    fn serving(tries: u32) -> (Network, Peers) {
        let peers = Peers::default();
        let source = Box::new(Scripted { peers: Rc::clone(&peers), tries });
        let sandbox = SandboxId::parse("sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
        let mut network =
            Network::begin(source, sandbox, draft("one.test"), SessionSecrets::default(), Wants::default()).unwrap();
        let counts = GateCounts { tcp: 0, proxy: 0, dns_udp: 0, dns_tcp: 0 };
        network.kept = Some(Kept { counts, gates: Vec::new(), files: TrustFiles(Vec::new()) });
        let State::Opening { session, .. } = std::mem::replace(&mut network.state, State::Closed) else { panic!() };
        network.state = State::Serving { session };
        assert!(matches!(asked(&peers), ToEgress::Open(open) if open.generation == 0));
        (network, peers)
    }

    /// The next message to the newest peer.
    fn asked(peers: &Peers) -> ToEgress {
        let peers = peers.borrow();
        let mut space = [];
        let (bytes, _) =
            wire::receive_with(peers.last().unwrap().as_fd(), rustix::net::RecvFlags::DONTWAIT, &mut space).unwrap();
        serde_json::from_slice(&bytes.unwrap()).unwrap()
    }

    fn answer(peers: &Peers, message: &FromEgress) {
        let bytes = serde_json::to_vec(message).unwrap();
        rustix::net::send(peers.borrow().last().unwrap(), &bytes, rustix::net::SendFlags::NOSIGNAL).unwrap();
    }

    fn die(peers: &Peers) {
        peers.borrow_mut().pop();
    }

    fn failed() -> Problem {
        Problem::new(Code::InvalidValue, "no such set", "use another one")
    }

    #[test]
    fn a_session_that_is_lost_is_opened_again_with_the_rules_of_that_moment() {
        let (mut network, peers) = serving(1);
        let now = Instant::now();
        assert!(network.replace_rules(draft("two.test")).unwrap());
        die(&peers);
        assert!(matches!(network.hear(now), Some(Told::Lost { is_for_good: false })));
        assert!(network.as_fd().is_none() && network.next().is_some());
        // Without a session there is nothing to wait for.
        assert!(!network.replace_rules(draft("three.test")).unwrap() && !network.settle());

        assert!(network.advance(now).is_none());
        let ToEgress::Open(open) = asked(&peers) else { panic!() };
        assert_eq!((open.generation, &open.egress), (1, &draft("three.test")));
        // Rules that come meanwhile are sent before the gates.
        assert!(network.replace_rules(draft("four.test")).unwrap());
        answer(&peers, &FromEgress::Opened { ca_pem: String::new(), placeholders: Vec::new() });
        answer(&peers, &FromEgress::Ruled {});
        assert!(matches!(network.hear(now), Some(Told::Ruled)));
        assert!(matches!(asked(&peers), ToEgress::Rules(rules) if rules == draft("four.test")));
        assert!(matches!(asked(&peers), ToEgress::Gates(_)));
        answer(&peers, &FromEgress::Listening {});
        assert!(matches!(network.hear(now), Some(Told::Restored)));
        assert!(network.settle() && network.next().is_none());
    }

    #[test]
    fn rules_that_are_refused_leave_those_before_them_in_force() {
        let (mut network, peers) = serving(1);
        let now = Instant::now();
        for rules in ["two.test", "three.test"] {
            assert!(network.replace_rules(draft(rules)).unwrap());
            assert!(matches!(asked(&peers), ToEgress::Rules(_)));
        }
        answer(&peers, &FromEgress::Ruled {});
        answer(&peers, &FromEgress::Failed(failed()));
        die(&peers);
        assert!(matches!(network.hear(now), Some(Told::Ruled)));
        assert!(matches!(network.hear(now), Some(Told::RulesRefused(problem)) if problem == failed()));
        assert!(matches!(network.hear(now), Some(Told::Lost { .. })));
        assert!(network.advance(now).is_none());
        assert!(matches!(asked(&peers), ToEgress::Open(open) if open.egress == draft("two.test")));
        // What can't be understood isn't even sent.
        let unknown = EgressDraft::of(vec!["@nothing".parse().unwrap()], Vec::new());
        assert!(network.replace_rules(unknown).is_err());
        assert_eq!(network.rules(), &draft("two.test"));
    }

    #[test]
    fn without_another_try_the_network_stays_closed_and_a_silent_process_counts_as_one() {
        let (mut network, peers) = serving(1);
        let now = Instant::now();
        die(&peers);
        assert!(matches!(network.hear(now), Some(Told::Lost { is_for_good: false })));
        assert!(network.advance(now).is_none());
        assert!(network.advance(now + OPENING - Duration::from_millis(1)).is_none());
        assert!(network.as_fd().is_some());
        assert!(matches!(network.advance(now + OPENING), Some(Told::Lost { is_for_good: true })));
        assert!(network.as_fd().is_none() && network.next().is_none());
        assert!(network.advance(now + OPENING * 2).is_none());
    }

    #[test]
    fn tries_become_rarer() {
        let delays: Vec<u128> = (0..6).map(|failed| backoff(failed).as_millis()).collect();
        assert_eq!(delays, [250, 500, 1000, 2000, 4000, 4000]);
    }
}
