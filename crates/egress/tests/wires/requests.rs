//! Any bytes as HTTP/1.1 from a program, through a whole session: what reaches the server was decided, and is for the right host and
//! an allowed path.

use std::convert::Infallible;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use saggar_domain::net::{Destination, HostName, NetDecision, Rules, Verdict};
use saggar_egress::decisions::Decisions;
use saggar_egress::dial::Dial;
use saggar_egress::limits::Limits;
use saggar_egress::names::Names;
use saggar_egress::resolve::{DialError, Dialed};
use saggar_egress::session::{Session, Setup};
use saggar_egress::tls::Roots;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::session::rules;

const HOST: &str = "a.example";
const PATIENCE: Duration = Duration::from_secs(20);

/// The hosts and the path of each request that reached the server.
type Seen = Arc<Mutex<Vec<(Vec<String>, String)>>>;

/// A session with one server behind it.
struct Place {
    gate: SocketAddr,
    decisions: Decisions,
    seen: Seen,
    /// How many of them were looked at, and how many decisions allowed one. Over all inputs: a request may still be on its way
    /// when the program that sent it has left.
    checked: usize,
    allowed: usize,
    _session: Session,
}

struct Route(SocketAddr);

impl Dial for Route {
    fn dial<'a>(
        &'a self,
        to: &'a Destination,
        _: &'a Rules,
        _: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Dialed, DialError>> + Send + 'a>> {
        Box::pin(async move {
            let connected = TcpStream::connect(self.0).await;
            let stream = connected.map_err(|source| DialError::Connect { to: to.clone(), source })?;
            Ok(Dialed { stream, address: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), to.port) })
        })
    }
}

impl Place {
    async fn new() -> Self {
        let seen = Seen::default();
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let route = Route(server.local_addr().unwrap());
        tokio::spawn(serve(server, Arc::clone(&seen)));
        let names = Arc::new(Names::default());
        let fake = names.assign(&HostName::parse(HOST.as_bytes()).unwrap()).unwrap().fake();
        let setup = Setup {
            rules: rules(&["a.example/ok/**"], &[]),
            limits: Limits::default(),
            roots: Roots::from_pem(Vec::new()),
            dial: Arc::new(route),
            names,
            models: None,
        };
        let (mut session, decisions) = Session::open(setup).unwrap();
        let gate = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = gate.local_addr().unwrap();
        session.serve_gate(gate, move |_: &TcpStream| Ok(SocketAddr::new(fake.v4.into(), 80)));
        Self { gate: address, decisions, seen, checked: 0, allowed: 0, _session: session }
    }

    async fn send(&mut self, data: &[u8]) {
        let mut stream = TcpStream::connect(self.gate).await.unwrap();
        // It may be refused before all of it is read.
        let _ = stream.write_all(data).await;
        let _ = stream.shutdown().await; // As above.
        let mut answer = Vec::new();
        // It may end with a reset.
        let _ = timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("an end");
        loop {
            {
                let seen = self.seen.lock().unwrap();
                for (hosts, path) in &seen[self.checked..] {
                    assert_eq!(hosts, &[HOST], "{path}");
                    let is_plain = path.split('/').all(|part| !matches!(part, "." | "..")) && !path.contains("//");
                    assert!(path.starts_with("/ok/") && is_plain, "{path}");
                }
                self.checked = seen.len();
            }
            while let Some(decision) = self.decisions.try_next() {
                self.take(&decision);
            }
            if self.allowed >= self.checked {
                break;
            }
            let decision = timeout(PATIENCE, self.decisions.next()).await.expect("a decision").expect("a session");
            self.take(&decision);
        }
    }

    fn take(&mut self, decision: &NetDecision) {
        self.allowed += usize::from(decision.verdict == Verdict::Allowed);
    }
}

async fn serve(listener: TcpListener, seen: Seen) {
    while let Ok((stream, _)) = listener.accept().await {
        let seen = Arc::clone(&seen);
        tokio::spawn(async move {
            let answer = service_fn(move |request: Request<Incoming>| {
                let hosts = request.headers().get_all("host").iter();
                let hosts = hosts.map(|host| String::from_utf8_lossy(host.as_bytes()).into_owned()).collect();
                seen.lock().unwrap().push((hosts, request.uri().path().to_owned()));
                async move {
                    // A program may leave in the middle of its body.
                    let _ = request.into_body().collect().await;
                    Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
                }
            });
            // Requests that end early are no event.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

pub fn fuzz_http(data: &[u8]) {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        static PLACE: std::cell::RefCell<Option<Place>> = const { std::cell::RefCell::new(None) };
    }
    RUNTIME.with(|runtime| {
        PLACE.with_borrow_mut(|place| {
            runtime.block_on(async {
                if place.is_none() {
                    *place = Some(Place::new().await);
                }
                place.as_mut().expect("made above").send(data).await;
            });
        });
    });
}
