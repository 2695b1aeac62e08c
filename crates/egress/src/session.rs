//! A session: the network of one sandbox, from the moment its rules are known until it ends.
//!
//! Dropping a session ends everything that belongs to it: listeners, connections, its certificate authority.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustls::ClientConfig;
use rustls::crypto::CryptoProvider;
use saggar_domain::Problem;
use saggar_domain::net::{Destination, NetDecision, Refusal, Rule, Rules};
use saggar_domain::secret::Grant;
use saggar_supervisor::egress::{FromEgress, HostAnswer};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::arrivals::Arrivals;
use crate::ask::{ANSWERED_MAX, Questions};
use crate::budget::Budgets;
use crate::ca::{Ca, CaError};
use crate::decisions::{Decisions, Outbox, queue};
use crate::dial::Dial;
use crate::dns::{self, Desk, Suspects};
use crate::gate::{self, OriginalDestination};
use crate::limits::{Limits, SIGNED_BODIES_MAX};
use crate::models::ModelsOf;
use crate::names::Names;
use crate::notices::{Notices, notices};
use crate::proxy;
use crate::recording::{Library, Recorder, Tape};
use crate::secret::Secrets;
use crate::tls::{Roots, client_configs};

pub struct Session {
    shared: Arc<Shared>,
    desk: Arc<Desk<Shared>>,
    /// One task per listener; each owns the tasks of its connections.
    listeners: JoinSet<()>,
    heard: mpsc::Receiver<FromEgress>,
}

/// What a session begins with.
pub struct Setup {
    pub rules: Rules,
    pub limits: Limits,
    /// Trusted for the servers outside.
    pub roots: Roots,
    pub dial: Arc<dyn Dial>,
    /// The names that have fake addresses.
    pub names: Arc<Names>,
    /// The way to the models of its server, if programs may call them.
    pub models: Option<ModelsOf>,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("making the sandbox's certificate authority")]
    Ca(#[from] CaError),
}

/// What all connections of a session share.
pub(crate) struct Shared {
    rules: watch::Sender<Arc<Rules>>,
    boundary: Mutex<Boundary>,
    /// Whether the secrets are bound, or none are expected.
    has_secrets: watch::Sender<bool>,
    pub limits: Limits,
    pub budgets: Budgets,
    pub ca: Ca,
    roots: Roots,
    upstream_tls: OnceLock<UpstreamTls>,
    dial: Mutex<Arc<dyn Dial>>,
    pub names: Arc<Names>,
    pub models: Option<ModelsOf>,
    pub decisions: Outbox,
    pub suspects: Suspects,
    pub notices: Notices,
    /// Set before the first connection, if at all.
    tape: OnceLock<Tape>,
    /// Refusals that are being delivered, and not reported yet.
    pub refusing: watch::Sender<usize>,
    /// The same, if someone answers questions.
    questions: OnceLock<Questions>,
    /// The same, if the supervisor wants to hear of connections.
    pub arrivals: OnceLock<Arrivals>,
    /// Room for bodies that are read whole, in bytes.
    pub signed_bodies: Arc<Semaphore>,
}

/// What the rules in force are made of.
struct Boundary {
    /// Without the hosts that secrets are bound to.
    rules: Rules,
    secrets: Arc<Secrets>,
    /// What a person allowed when asked.
    answered: Vec<Rule>,
}

/// Offers a server what the client speaks, so that most exchanges need no translation.
pub(crate) struct UpstreamTls {
    pub http1: Arc<ClientConfig>,
    pub http1_and_2: Arc<ClientConfig>,
}

impl Session {
    pub fn open(setup: Setup) -> Result<(Self, Decisions), OpenError> {
        let provider: Arc<CryptoProvider> = Arc::clone(setup.roots.provider());
        let (outbox, decisions) = queue(setup.limits.decisions);
        let (notices, heard) = notices();
        let budgets = Budgets::new(&setup.limits, &setup.rules.draft().limits);
        let rules = setup.rules.with_models(setup.models.is_some());
        let shared = Shared {
            rules: watch::Sender::new(Arc::new(rules.clone())),
            boundary: Mutex::new(Boundary { rules, secrets: Arc::default(), answered: Vec::new() }),
            has_secrets: watch::Sender::new(true),
            budgets,
            ca: Ca::new(provider)?,
            roots: setup.roots,
            upstream_tls: OnceLock::new(),
            dial: Mutex::new(setup.dial),
            names: setup.names,
            models: setup.models,
            decisions: outbox,
            suspects: Suspects::default(),
            notices,
            tape: OnceLock::new(),
            refusing: watch::Sender::new(0),
            questions: OnceLock::new(),
            arrivals: OnceLock::new(),
            signed_bodies: Arc::new(Semaphore::new(SIGNED_BODIES_MAX)),
            limits: setup.limits,
        };
        let shared = Arc::new(shared);
        let desk = Arc::new(Desk::new(Arc::clone(&shared.names), Arc::clone(&shared)));
        Ok((Self { shared, desk, listeners: JoinSet::new(), heard }, decisions))
    }

    /// The certificate that programs in the sandbox have to trust.
    pub fn ca_pem(&self) -> &str {
        self.shared.ca.pem()
    }

    pub fn rules(&self) -> Arc<Rules> {
        self.shared.rules()
    }

    /// From now on decides by `rules`. Connections that they forbid are cut.
    pub fn replace_rules(&self, rules: Rules) {
        self.shared.replace_rules(rules);
    }

    /// From now on requests get these secrets and no others. The hosts that they are bound to are inspected, so open tunnels to them
    /// are cut. Values that are not used any more are overwritten; a request that was sent with one may still end.
    pub fn bind(&self, grants: Vec<Grant>) -> Result<(), Problem> {
        self.shared.bind(grants)
    }

    /// Until [`Self::bind`] is called, what the rules allow waits, and is refused if that takes too long. Call it before anything is
    /// served. A session that takes the place of a lost one must not let a request out without its secret.
    pub fn await_secrets(&self) {
        self.shared.has_secrets.send_replace(false);
    }

    pub fn handle(&self) -> Handle {
        Handle(Arc::downgrade(&self.shared))
    }

    /// Records every exchange from now on. The file must be open for appending. Call it before anything is served.
    pub fn record(&self, file: OwnedFd) -> io::Result<()> {
        let recorder = Recorder::begin(file, self.shared.limits.recording, self.shared.notices.clone())?;
        self.set_tape(Tape::Record(Arc::new(recorder)))
    }

    /// Answers requests from a recording alone: nothing is resolved or dialled. Call it before anything is served.
    pub fn replay(&self, library: Library) -> io::Result<()> {
        self.set_tape(Tape::Replay(Arc::new(library)))
    }

    fn set_tape(&self, tape: Tape) -> io::Result<()> {
        self.shared.tape.set(tape).map_err(|_| io::Error::other("the session has a recording already"))
    }

    /// Asks about hosts that no rule allows, from now on. Call it before anything is served.
    pub fn ask(&self) {
        self.shared.questions.get_or_init(Questions::default);
    }

    /// Announces every connection from now on. Call it before anything is served.
    pub fn announce_connections(&self) {
        self.shared.arrivals.get_or_init(Arrivals::default);
    }

    pub fn answer(&self, question: u64, answer: HostAnswer) {
        if let Some(questions) = self.shared.questions() {
            questions.answer(&self.shared, question, answer);
        }
    }

    /// The next message for the supervisor that is no decision. May be cancelled at any time.
    pub async fn notice(&mut self) -> Option<FromEgress> {
        self.heard.recv().await
    }

    /// Serves a listener that gets connections to any address.
    pub fn serve_gate(&mut self, listener: TcpListener, original: impl OriginalDestination) {
        self.listeners.spawn(gate::serve(Arc::clone(&self.shared), listener, original));
    }

    /// Serves the listener that proxy variables name.
    pub fn serve_proxy(&mut self, listener: TcpListener) {
        self.listeners.spawn(proxy::serve(Arc::clone(&self.shared), listener));
    }

    /// Answers DNS. If the socket fails for good, the sandbox has no DNS any more.
    pub fn serve_dns_udp(&mut self, socket: UdpSocket) {
        let desk = Arc::clone(&self.desk);
        self.listeners.spawn(async move {
            dns::serve_udp(socket, desk).await;
        });
    }

    pub fn serve_dns_tcp(&mut self, listener: TcpListener) {
        let desk = Arc::clone(&self.desk);
        self.listeners.spawn(async move {
            dns::serve_tcp(listener, desk).await;
        });
    }
}

/// Changes a session. Doesn't keep it alive; after its end nothing happens.
#[derive(Clone)]
pub struct Handle(Weak<Shared>);

impl Handle {
    pub fn replace_rules(&self, rules: Rules) {
        if let Some(shared) = self.0.upgrade() {
            shared.replace_rules(rules);
        }
    }

    /// See [`Session::bind`].
    pub fn bind(&self, grants: Vec<Grant>) -> Result<(), Problem> {
        self.0.upgrade().map_or(Ok(()), |shared| shared.bind(grants))
    }

    /// The session is about to end: nothing of it goes out with a secret any more, nor without one that it would need.
    pub fn forget_secrets(&self) {
        if let Some(shared) = self.0.upgrade() {
            shared.has_secrets.send_replace(false);
            let mut boundary = shared.boundary();
            boundary.secrets = Arc::default();
        }
    }

    /// Until no refusal is waiting to be reported. May be cancelled at any time.
    pub async fn until_settled(&self) {
        let Some(mut refusing) = self.0.upgrade().map(|shared| shared.refusing.subscribe()) else { return };
        // An error is the end of the session.
        let _ = refusing.wait_for(|refusing| *refusing == 0).await;
    }

    /// For connections from now on.
    pub fn replace_dial(&self, dial: Arc<dyn Dial>) {
        if let Some(shared) = self.0.upgrade() {
            *shared.dial.lock().unwrap_or_else(PoisonError::into_inner) = dial;
        }
    }
}

impl dns::Session for Shared {
    fn rules(&self) -> Arc<Rules> {
        Self::rules(self)
    }

    fn record(&self, decision: NetDecision) {
        self.decisions.send(decision);
    }

    fn suspects(&self) -> &Suspects {
        &self.suspects
    }
}

impl Shared {
    /// How TLS with servers begins. Made when it is first needed.
    pub fn upstream_tls(&self) -> Result<&UpstreamTls, rustls::Error> {
        if let Some(made) = self.upstream_tls.get() {
            return Ok(made);
        }
        let made = client_configs(&self.roots)?;
        Ok(self.upstream_tls.get_or_init(|| made))
    }

    pub fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.borrow())
    }

    fn replace_rules(&self, rules: Rules) {
        let mut boundary = self.boundary();
        self.budgets.replace(&rules.draft().limits);
        boundary.rules = rules.with_models(self.models.is_some());
        self.put_in_force(&boundary);
    }

    fn bind(&self, grants: Vec<Grant>) -> Result<(), Problem> {
        let secrets = Arc::new(Secrets::new(grants)?);
        let mut boundary = self.boundary();
        boundary.secrets = secrets;
        self.put_in_force(&boundary);
        // Afterwards: who waited for this goes by the new rules.
        self.has_secrets.send_replace(true);
        Ok(())
    }

    pub fn has_secrets(&self) -> bool {
        *self.has_secrets.borrow()
    }

    /// Waits until the secrets are bound, within its limit. May be cancelled at any time.
    pub async fn until_secrets(&self, to: &Destination) -> Result<(), Refusal> {
        if self.has_secrets() {
            return Ok(());
        }
        let mut bound = self.has_secrets.subscribe();
        match timeout(self.limits.secrets_time, bound.wait_for(|bound| *bound)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Refusal::new(
                "egress/secrets-pending",
                format!("the secrets of the sandbox are not there yet, so nothing is sent to {to}"),
                "try again in a moment; if it stays so, look into the log of the server",
            )),
        }
    }

    pub fn secrets(&self) -> Arc<Secrets> {
        Arc::clone(&self.boundary().secrets)
    }

    pub fn dial(&self) -> Arc<dyn Dial> {
        Arc::clone(&self.dial.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put_in_force(&self, boundary: &Boundary) {
        let rules = boundary.rules.clone();
        // Both fit together, or the answer was not taken.
        let rules = rules.clone().with_allowed(&boundary.answered).unwrap_or(rules);
        let rules = rules.with_bound(boundary.secrets.rules());
        self.rules.send_replace(Arc::new(rules));
    }

    fn boundary(&self) -> MutexGuard<'_, Boundary> {
        self.boundary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn rules_changes(&self) -> watch::Receiver<Arc<Rules>> {
        self.rules.subscribe()
    }

    pub fn questions(&self) -> Option<&Questions> {
        self.questions.get()
    }

    /// Adds a rule that a person gave. Returns whether there was room for it.
    pub fn allow(&self, rule: Rule) -> bool {
        let mut boundary = self.boundary();
        if boundary.answered.len() >= ANSWERED_MAX {
            return false;
        }
        boundary.answered.push(rule);
        let fits = boundary.rules.clone().with_allowed(&boundary.answered).is_ok();
        if !fits {
            boundary.answered.pop();
        }
        self.put_in_force(&boundary);
        fits
    }

    /// Takes one such rule away. Connections that only it allowed are cut.
    pub fn withdraw(&self, rule: &Rule) {
        let mut boundary = self.boundary();
        if let Some(index) = boundary.answered.iter().rposition(|answered| answered == rule) {
            boundary.answered.remove(index);
            self.put_in_force(&boundary);
        }
    }

    pub fn recorder(&self) -> Option<&Arc<Recorder>> {
        match self.tape.get() {
            Some(Tape::Record(recorder)) => Some(recorder),
            Some(Tape::Replay(_)) | None => None,
        }
    }

    pub fn library(&self) -> Option<&Arc<Library>> {
        match self.tape.get() {
            Some(Tape::Replay(library)) => Some(library),
            Some(Tape::Record(_)) | None => None,
        }
    }

    /// Whether every request has to be seen, also of hosts that would pass unread.
    pub fn has_tape(&self) -> bool {
        self.tape.get().is_some()
    }

    /// Connections of the sandbox.
    pub fn open_connections(&self) -> usize {
        self.budgets.entered()
    }
}
