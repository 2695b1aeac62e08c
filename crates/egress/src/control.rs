//! The egress process's end of a session with a supervisor.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, TcpListener as StdListener, UdpSocket as StdUdp};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvFlags, SendFlags};
use saggar_domain::net::{EgressDraft, Rules};
use saggar_domain::{Code, Problem};
use saggar_jail::original_destination;
use saggar_supervisor::egress::{EGRESS, FromEgress, GateCounts, Open, ToEgress, receive_with};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use tokio::time::timeout;

use crate::decisions::Decisions;
use crate::limits::Limits;
use crate::names::Names;
use crate::resolve::{Dialer, Upstream};
use crate::session::{Session, Setup};
use crate::tls::Roots;

/// Descriptors of one message.
const DESCRIPTORS_MAX: usize = 16;
/// How long connections may take to end and to be reported when the session is over.
const LAST_DECISIONS: Duration = Duration::from_secs(1);

/// The socket of a session. The runtime has no type for sockets of packets, and needs none: only its readiness is waited for.
pub struct Control {
    socket: UnixStream,
}

/// One message, or the end.
enum Incoming {
    Message(ToEgress, Vec<OwnedFd>),
    End,
}

impl Control {
    /// The socket must not block.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { socket: UnixStream::from_std(socket.into())? })
    }

    async fn receive(&self) -> io::Result<Incoming> {
        let receive = || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            Ok(receive_with(self.socket.as_fd(), RecvFlags::DONTWAIT, &mut space)?)
        };
        let (bytes, descriptors) = self.socket.async_io(Interest::READABLE, receive).await?;
        match bytes {
            Some(bytes) => Ok(Incoming::Message(serde_json::from_slice(&bytes)?, descriptors)),
            None => Ok(Incoming::End),
        }
    }

    async fn send(&self, message: &FromEgress) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let send = || Ok(rustix::net::send(&self.socket, &bytes, flags)?);
        self.socket.async_io(Interest::WRITABLE, send).await.map(drop)
    }
}

/// Serves one sandbox, until its supervisor closes the session.
pub async fn converse(control: Control, roots: Roots) {
    let served = serve(&control, roots).await;
    if let Err(problem) = served {
        // The supervisor may be gone; then there is no one to tell.
        let _ = control.send(&FromEgress::Failed(problem)).await;
    }
}

async fn serve(control: &Control, roots: Roots) -> Result<(), Problem> {
    let open = match control.receive().await.map_err(broken)? {
        Incoming::Message(ToEgress::Open(open), _) => *open,
        Incoming::Message(..) => return Err(misused("a session begins with `open`")),
        Incoming::End => return Ok(()),
    };
    let (served, mut decisions) = Served::begin(open, roots)?;
    let certificate = FromEgress::Opened { ca_pem: served.session.ca_pem().to_owned() };
    control.send(&certificate).await.map_err(broken)?;
    let ended = attend(control, served, &mut decisions).await;
    // The session is dropped: every connection ends, and says so.
    let rest = async {
        while let Some(decision) = decisions.next().await {
            if control.send(&FromEgress::Decision(Box::new(decision))).await.is_err() {
                return;
            }
        }
        tell_dropped(control, &decisions).await;
    };
    // A connection that takes longer is not reported.
    let _ = timeout(LAST_DECISIONS, rest).await;
    ended
}

async fn attend(control: &Control, mut served: Served, decisions: &mut Decisions) -> Result<(), Problem> {
    loop {
        tokio::select! {
            incoming = control.receive() => match incoming.map_err(broken)? {
                Incoming::Message(ToEgress::Gates(counts), descriptors) => {
                    served.open_gates(counts, descriptors)?;
                    control.send(&FromEgress::Listening {}).await.map_err(broken)?;
                }
                Incoming::Message(ToEgress::Rules(draft), _) => {
                    served.session.replace_rules(rules(draft, &served.own)?);
                    control.send(&FromEgress::Ruled {}).await.map_err(broken)?;
                }
                Incoming::Message(ToEgress::Open(_), _) => return Err(misused("the session is open already")),
                Incoming::End => return Ok(()),
            },
            Some(decision) = decisions.next() => {
                control.send(&FromEgress::Decision(Box::new(decision))).await.map_err(broken)?;
                tell_dropped(control, decisions).await;
            }
        }
    }
}

async fn tell_dropped(control: &Control, decisions: &Decisions) {
    let count = decisions.take_dropped();
    if count > 0 {
        // If this fails, the next message fails too.
        let _ = control.send(&FromEgress::Dropped { decisions: count }).await;
    }
}

/// A session, and what its rules need to know of the host.
struct Served {
    session: Session,
    /// The addresses of the host.
    own: Vec<IpAddr>,
}

impl Served {
    fn begin(open: Open, roots: Roots) -> Result<(Self, Decisions), Problem> {
        if open.v > EGRESS {
            return Err(Problem::new(
                Code::UnsupportedProtocol,
                format!(
                    "the supervisor speaks version {} of the egress protocol, this process version {EGRESS}",
                    open.v
                ),
                "use the same version of saggar for both",
            ));
        }
        let own = open.upstream.own;
        let dialer = Dialer::new(Upstream::new(open.upstream.servers, open.upstream.hosts));
        let setup = Setup {
            rules: rules(open.egress, &own)?,
            limits: Limits::default(),
            roots,
            dial: Arc::new(dialer),
            names: Arc::new(Names::default()),
        };
        let (session, decisions) = Session::open(setup).map_err(broken)?;
        Ok((Self { session, own }, decisions))
    }

    fn open_gates(&mut self, counts: GateCounts, descriptors: Vec<OwnedFd>) -> Result<(), Problem> {
        if counts.sum() != descriptors.len() || counts.sum() > DESCRIPTORS_MAX {
            return Err(misused("the gates are not as many as the message says"));
        }
        let mut rest = descriptors.into_iter();
        let mut take = |count: usize| rest.by_ref().take(count).collect::<Vec<_>>();
        for gate in take(counts.tcp) {
            self.session.serve_gate(listener(gate)?, |stream: &TcpStream| original_destination(stream));
        }
        for gate in take(counts.proxy) {
            self.session.serve_proxy(listener(gate)?);
        }
        for gate in take(counts.dns_udp) {
            let socket = UdpSocket::from_std(StdUdp::from(gate)).map_err(broken)?;
            self.session.serve_dns_udp(socket);
        }
        for gate in take(counts.dns_tcp) {
            self.session.serve_dns_tcp(listener(gate)?);
        }
        Ok(())
    }
}

fn rules(draft: EgressDraft, own: &[IpAddr]) -> Result<Rules, Problem> {
    Ok(Rules::new(draft)?.with_own_addresses(own.iter().copied()))
}

fn listener(gate: OwnedFd) -> Result<TcpListener, Problem> {
    TcpListener::from_std(StdListener::from(gate)).map_err(broken)
}

fn broken(error: impl std::fmt::Display) -> Problem {
    Problem::new(Code::SetupFailed, format!("the egress process failed: {error}"), "try again")
}

fn misused(what: &str) -> Problem {
    Problem::new(Code::InvalidValue, format!("the egress process was misused: {what}"), "report it")
}
