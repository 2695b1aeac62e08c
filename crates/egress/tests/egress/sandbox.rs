//! The sandbox's side: a session under test, and dialling as a program inside would.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use saggar_domain::net::{EgressDraft, HostName, NetDecision, Rules, Summed};
use saggar_egress::decisions::Decisions;
use saggar_egress::limits::Limits;
use saggar_egress::names::Names;
use saggar_egress::session::{Session, Setup};
use saggar_egress::tls::Roots;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::world::World;

/// For an event that must come. Long, because the machine may be busy.
pub const DEADLINE: Duration = Duration::from_secs(20);

pub struct Sandbox {
    pub session: Session,
    pub proxy: SocketAddr,
    pub ca_pem: String,
    decisions: Decisions,
    gate: SocketAddr,
    names: Arc<Names>,
    originals: Arc<Mutex<HashMap<SocketAddr, SocketAddr>>>,
}

pub fn rules(allow: &[&str], deny: &[&str]) -> Rules {
    let parse = |rules: &[&str]| rules.iter().map(|rule| rule.parse().unwrap()).collect();
    Rules::new(EgressDraft::of(parse(allow), parse(deny))).unwrap()
}

impl Sandbox {
    pub async fn allowing(world: &World, allow: &[&str]) -> Self {
        Self::with_limits(world, allow, Limits::default()).await
    }

    pub async fn with_limits(world: &World, allow: &[&str], limits: Limits) -> Self {
        Self::prepared(world, allow, limits, |_| {}).await
    }

    /// The session is prepared before it serves anything.
    pub async fn prepared(world: &World, allow: &[&str], limits: Limits, prepare: impl FnOnce(&Session)) -> Self {
        let names = Arc::new(Names::default());
        let setup = Setup {
            rules: rules(allow, &[]),
            limits,
            roots: Roots::from_pem(world.pki.roots_pem.clone().into_bytes()),
            dial: world.dial(),
            names: Arc::clone(&names),
            models: None,
        };
        let (mut session, decisions) = Session::open(setup).unwrap();
        prepare(&session);
        let gate = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (gate_address, proxy_address) = (gate.local_addr().unwrap(), proxy.local_addr().unwrap());
        let originals = Arc::new(Mutex::new(HashMap::new()));
        let known: Arc<Mutex<HashMap<SocketAddr, SocketAddr>>> = Arc::clone(&originals);
        session.serve_gate(gate, move |stream: &TcpStream| {
            let peer = stream.peer_addr()?;
            known.lock().unwrap().get(&peer).copied().ok_or(io::ErrorKind::NotFound.into())
        });
        session.serve_proxy(proxy);
        let ca_pem = session.ca_pem().to_owned();
        Self { session, proxy: proxy_address, ca_pem, decisions, gate: gate_address, names, originals }
    }

    /// Dials a name, by the address that the session's DNS would give.
    pub async fn dial(&self, host: &str, port: u16) -> TcpStream {
        let name = HostName::parse(host.as_bytes()).unwrap();
        let fake = self.names.assign(&name).unwrap().fake();
        self.dial_address(IpAddr::V4(fake.v4), port).await
    }

    /// Dials an address, which the kernel would redirect to the gate.
    pub async fn dial_address(&self, address: IpAddr, port: u16) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let original = SocketAddr::new(address, port);
        self.originals.lock().unwrap().insert(socket.local_addr().unwrap(), original);
        let stream = socket.connect(self.gate).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// A connection to the gate that no redirect led there.
    pub async fn dial_gate(&self) -> TcpStream {
        TcpStream::connect(self.gate).await.unwrap()
    }

    pub async fn decision(&mut self) -> NetDecision {
        tokio::time::timeout(DEADLINE, self.decisions.next()).await.expect("a decision in time").expect("a session")
    }

    pub fn try_decision(&mut self) -> Option<NetDecision> {
        self.decisions.try_next()
    }

    /// Ends the session, and returns the decisions that nobody has asked for yet.
    pub async fn rest(self) -> Vec<NetDecision> {
        let Self { session, mut decisions, .. } = self;
        drop(session);
        let mut rest = Vec::new();
        while let Some(decision) = tokio::time::timeout(DEADLINE, decisions.next()).await.expect("the session to end") {
            rest.push(decision);
        }
        rest
    }

    /// Sums of decisions that came too fast.
    pub fn flood(&self) -> Summed {
        self.decisions.take_flood()
    }
}
