//! One process for many sandboxes: sessions are apart, panics stay where they are, and a server can manage it.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::{Uid, geteuid};
use saggar_domain::net::{EgressDraft, NetDecision, Verdict};
use saggar_domain::secret::Grant;
use saggar_domain::{Code, SandboxId};
use saggar_egress::service::Service;
use saggar_egress::setting::{Dialers, Setting};
use saggar_egress::tls::Roots;
use saggar_supervisor::egress::{
    EGRESS, FromEgress, GateCounts, Management, Open, Session, Upstream, model_sockets, next_model_caller,
};
use tokio::io::Interest;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::{Duration, timeout};

use crate::client::{HTTP1, get, http1, send1, tls};
use crate::sandbox::DEADLINE;
use crate::world::{PUBLIC, World};

const ONE: &str = "sbx_aaaaaaaaaaaaaaaaaaaaaaaaaa";
const TWO: &str = "sbx_bbbbbbbbbbbbbbbbbbbbbbbbbb";

/// A service on a socket of its own.
struct Running {
    address: PathBuf,
    task: JoinHandle<std::io::Result<()>>,
    _directory: Directory,
}

struct Directory(PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // The system removes it in time.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Running {
    fn start(setting: Setting, owner: Uid, linger: Duration) -> Self {
        let random: u64 = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), ());
        let directory = std::env::temp_dir().join(format!("saggar-service-{random:x}"));
        std::fs::create_dir(&directory).unwrap();
        let address = directory.join("egress.sock");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        bind(&socket, &SocketAddrUnix::new(&address).unwrap()).unwrap();
        listen(&socket, 16).unwrap();
        let task = tokio::spawn(Service { setting, owner, linger }.run(socket));
        Self { address, task, _directory: Directory(directory) }
    }

    fn of(world: &World) -> Self {
        let dial = world.dial();
        Self::start(setting(world, Arc::new(move |_| Arc::clone(&dial))), geteuid(), FOR_EVER)
    }

    async fn ended(self) {
        timeout(DEADLINE, self.task).await.expect("the service to end").unwrap().unwrap();
    }
}

const FOR_EVER: Duration = Duration::from_secs(3600);

fn setting(world: &World, dialers: Dialers) -> Setting {
    Setting { roots: Roots::from_pem(world.pki.roots_pem.clone().into_bytes()), dialers, models: Default::default() }
}

/// A supervisor with its session, and a proxy port as its only gate.
struct Supervisor {
    session: Session,
    ca_pem: String,
    proxy: SocketAddr,
    _gate: OwnedFd,
}

fn open(id: &str, allow: &[&str]) -> Open {
    Open {
        v: EGRESS,
        sandbox_id: SandboxId::parse(id).unwrap(),
        egress: draft(allow),
        upstream: Upstream::default(),
        generation: 0,
        asks: false,
        attributes: false,
        secrets: Vec::new(),
        placeholders: Vec::new(),
        awaits_secrets: false,
        models: false,
    }
}

fn draft(allow: &[&str]) -> EgressDraft {
    EgressDraft::of(allow.iter().map(|rule| rule.parse().unwrap()).collect(), Vec::new())
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

impl Supervisor {
    async fn open(running: &Running, id: &str, allow: &[&str]) -> Self {
        Self::try_open(running, open(id, allow)).await.unwrap()
    }

    async fn try_open(running: &Running, open: Open) -> Result<Self, String> {
        let address = running.address.clone();
        blocking(move || {
            let mut session = Session::connect(&address).map_err(|errno| errno.to_string())?;
            session.open(open, &[]).map_err(|problem| problem.message)?;
            let ca_pem = session.certificate().map_err(|problem| problem.message)?;
            let gate = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            gate.set_nonblocking(true).unwrap();
            let (proxy, gate) = (gate.local_addr().unwrap(), OwnedFd::from(gate));
            let counts = GateCounts { tcp: 0, proxy: 1, dns_udp: 0, dns_tcp: 0 };
            session.hand_over(counts, &[gate.as_fd()]).map_err(|problem| problem.message)?;
            Ok(Self { session, ca_pem, proxy, _gate: gate })
        })
        .await
    }

    /// The first line of the answer to a plain request over the proxy.
    async fn fetch(&self, host: &str) -> String {
        let mut stream = TcpStream::connect(self.proxy).await.unwrap();
        let request = format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A connection whose task panicked may end with a reset.
        let _ = timeout(DEADLINE, stream.read_to_end(&mut answer)).await.expect("an end in time");
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    }

    async fn tunnel(&self, to: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.proxy).await.unwrap();
        stream.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(timeout(DEADLINE, stream.read_u8()).await.expect("an answer in time").unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&answer));
        stream
    }

    /// The decisions until one about `host`.
    async fn decisions_until(mut self, host: &'static str) -> (Self, Vec<NetDecision>) {
        blocking(move || {
            let mut seen = Vec::new();
            self.session
                .await_decisions(|decision| {
                    seen.push(decision.clone());
                    decision.host == host
                })
                .unwrap();
            (self, seen)
        })
        .await
    }

    /// Ends the session.
    async fn close(self) -> Vec<FromEgress> {
        blocking(move || {
            let mut last = Vec::new();
            self.session.finish(DEADLINE, &mut |message| last.push(message));
            last
        })
        .await
    }
}

async fn echoes(stream: &mut TcpStream) -> bool {
    let sent = stream.write_all(b"x").await;
    sent.is_ok() && matches!(timeout(DEADLINE, stream.read_u8()).await.expect("an answer in time"), Ok(b'x'))
}

async fn managed(running: &Running) -> Management {
    let address = running.address.clone();
    blocking(move || Management::connect(&address).unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_have_nothing_of_each_other() {
    let world = World::new();
    world.http("one.test").await;
    world.http("two.test").await;
    world.echo("two.test:7000").await;
    let running = Running::of(&world);
    let one = Supervisor::open(&running, ONE, &["one.test"]).await;
    let two = Supervisor::open(&running, TWO, &["two.test", "two.test:7000"]).await;
    assert_ne!(one.ca_pem, two.ca_pem);
    for (sandbox, allowed, denied) in [(&one, "one.test", "two.test"), (&two, "two.test", "one.test")] {
        assert_eq!(sandbox.fetch(allowed).await, "HTTP/1.1 200 OK");
        assert!(sandbox.fetch(denied).await.starts_with("HTTP/1.1 403 "));
    }
    let mut tunnel = two.tunnel("two.test:7000").await;
    assert!(echoes(&mut tunnel).await);
    // Each supervisor hears of its own sandbox alone.
    let (one, decisions) = one.decisions_until("two.test").await;
    let seen: Vec<_> = decisions.iter().map(|decision| (decision.host.as_str(), decision.verdict)).collect();
    assert_eq!(seen, [("one.test", Verdict::Allowed), ("two.test", Verdict::Denied)]);
    // Nor do the rules and the end of one reach the other.
    let one = blocking(move || {
        let mut one = one;
        one.session.replace_rules(draft(&[])).unwrap();
        one
    })
    .await;
    assert!(one.fetch("one.test").await.starts_with("HTTP/1.1 403 "));
    assert_eq!(two.fetch("two.test").await, "HTTP/1.1 200 OK");
    one.close().await;
    assert!(echoes(&mut tunnel).await);
    let last = two.close().await;
    let tunnelled = |message: &FromEgress| matches!(message, FromEgress::Decision(decision) if decision.port == 7000);
    assert!(last.iter().any(tunnelled), "{last:?}");
}

/// A server's models: each request is answered with the name of the sandbox that it came from.
fn models(socket: OwnedFd) -> JoinHandle<()> {
    let socket = UnixStream::from_std(socket.into()).unwrap();
    tokio::spawn(async move {
        let next = || Ok(next_model_caller(socket.as_fd())?);
        while let Ok(Some((sandbox, stream))) = socket.async_io(Interest::READABLE, next).await {
            let mut stream = UnixStream::from_std(stream.into()).unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            let answer = format!("HTTP/1.1 200 {sandbox}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn each_session_calls_models_in_its_own_name() {
    let world = World::new();
    let running = Running::of(&world);
    let of = |id, models| Open { models, ..open(id, &["*", "model.internal"]) };
    let one = Supervisor::try_open(&running, of(ONE, true)).await.unwrap();
    let two = Supervisor::try_open(&running, of(TWO, true)).await.unwrap();
    let none = Supervisor::try_open(&running, of("sbx_cccccccccccccccccccccccccc", false)).await.unwrap();
    let away = "HTTP/1.1 503 saggar: the server behind model.internal is not there";
    assert!(one.fetch("model.internal").await.starts_with(away), "nobody has led the way");
    let mut server = managed(&running).await;
    assert!(server.leads_models);
    for _ in 0..2 {
        let (ours, theirs) = model_sockets().unwrap();
        server = blocking(move || server.lead_models(theirs.as_fd()).map(|()| server)).await.unwrap();
        let serving = models(ours);
        assert_eq!(one.fetch("model.internal").await, format!("HTTP/1.1 200 {ONE}"));
        assert_eq!(two.fetch("model.internal").await, format!("HTTP/1.1 200 {TWO}"));
        // The server has gone, and the next one leads the way to itself.
        serving.abort();
        assert!(serving.await.unwrap_err().is_cancelled());
        assert!(one.fetch("model.internal").await.starts_with(away));
    }
    assert!(none.fetch("model.internal").await.starts_with("HTTP/1.1 403 "));
    let (one, decisions) = one.decisions_until("model.internal").await;
    assert_eq!(decisions.last().unwrap().rule, "models", "{decisions:?}");
    // New rules of a session change nothing about its models.
    let one = blocking(move || {
        let mut one = one;
        one.session.replace_rules(draft(&[])).unwrap();
        one
    })
    .await;
    assert!(one.fetch("model.internal").await.starts_with(away));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_ends_the_connection_in_which_it_happens_and_nothing_else() {
    let world = World::new();
    world.http("one.test").await;
    world.echo("one.test:7000").await;
    let dial = world.dial();
    let broken = Upstream { servers: vec!["192.0.2.1:53".parse().unwrap()], ..Upstream::default() };
    let is_broken = broken.clone();
    let dialers: Dialers = Arc::new(move |upstream| {
        assert_ne!(upstream, &is_broken, "a panic of a session");
        Arc::clone(&dial)
    });
    let running = Running::start(setting(&world, dialers), geteuid(), FOR_EVER);
    let one = Supervisor::open(&running, ONE, &["one.test", "one.test:7000", "panic.test"]).await;
    let mut tunnel = one.tunnel("one.test:7000").await;

    // In a connection of the sandbox.
    assert_eq!(one.fetch("panic.test").await, "");
    // While a session is opened.
    let refused = Supervisor::try_open(&running, Open { upstream: broken, ..open(TWO, &[]) }).await;
    assert!(refused.is_err_and(|message| message.contains("it ended")));

    assert!(echoes(&mut tunnel).await);
    assert_eq!(one.fetch("one.test").await, "HTTP/1.1 200 OK");
    let two = Supervisor::open(&running, TWO, &["one.test"]).await;
    assert_eq!(two.fetch("one.test").await, "HTTP/1.1 200 OK");
    assert_eq!(managed(&running).await.sessions, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_network_of_the_host_reaches_every_session() {
    let (before, after) = (World::new(), World::new());
    for world in [&before, &after] {
        world.echo("echo.test:7000").await;
    }
    before.http("old.test").await;
    after.http("new.test").await;
    let (old, new) = (before.dial(), after.dial());
    let dialers: Dialers = Arc::new(move |upstream| Arc::clone(if upstream.servers.is_empty() { &old } else { &new }));
    let running = Running::start(setting(&before, dialers), geteuid(), FOR_EVER);
    let allow = ["old.test", "new.test", "echo.test:7000"];
    let one = Supervisor::open(&running, ONE, &allow).await;
    let two = Supervisor::open(&running, TWO, &allow).await;
    let mut tunnel = two.tunnel("echo.test:7000").await;
    for sandbox in [&one, &two] {
        assert_eq!(sandbox.fetch("old.test").await, "HTTP/1.1 200 OK");
        assert!(sandbox.fetch("new.test").await.starts_with("HTTP/1.1 502 "));
    }
    let servers = vec!["192.0.2.1:53".parse().unwrap()];
    let mut management = managed(&running).await;
    assert_eq!((management.version.as_str(), management.sessions), (env!("CARGO_PKG_VERSION"), 2));
    let moved = Upstream { servers: servers.clone(), ..Upstream::default() };
    let mut management = blocking(move || {
        management.replace_upstream(moved).unwrap();
        management
    })
    .await;
    for sandbox in [&one, &two] {
        assert_eq!(sandbox.fetch("new.test").await, "HTTP/1.1 200 OK");
        assert!(sandbox.fetch("old.test").await.starts_with("HTTP/1.1 502 "));
    }
    assert!(echoes(&mut tunnel).await);
    // An address of the host's own is not reachable by a name, and what is connected to it is cut.
    let own: Vec<IpAddr> = vec![PUBLIC];
    blocking(move || management.replace_upstream(Upstream { servers, own, ..Upstream::default() }).unwrap()).await;
    assert!(!echoes(&mut tunnel).await);
    assert!(one.fetch("new.test").await.starts_with("HTTP/1.1 403 "));
    // Rules that the supervisor sends later keep it so.
    let one = blocking(move || {
        let mut one = one;
        one.session.replace_rules(draft(&["new.test"])).unwrap();
        one
    })
    .await;
    assert!(one.fetch("new.test").await.starts_with("HTTP/1.1 403 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_gives_secrets_to_one_sandbox_and_the_next_request_has_them() {
    let world = World::new();
    let server = world.https("one.test").await;
    let running = Running::of(&world);
    let one = Supervisor::open(&running, ONE, &["one.test/**"]).await;
    let two = Supervisor::open(&running, TWO, &["one.test/**"]).await;
    let mut management = managed(&running).await;
    for value in ["first-canary", "second-canary"] {
        let mut given = management;
        management = blocking(move || {
            given.bind(SandboxId::parse(ONE).unwrap(), vec![bearer("canary", value)]).unwrap();
            given
        })
        .await;
        for (sandbox, expected) in [(&one, Some(format!("Bearer {value}"))), (&two, None)] {
            let stream = tls(sandbox.tunnel("one.test:443").await, "one.test", &sandbox.ca_pem, HTTP1).await.unwrap();
            let answer = send1(&mut http1(stream).await, get("one.test", "/")).await;
            assert_eq!(answer.status, http::StatusCode::OK);
            let got = server.seen().pop().unwrap().headers.get("authorization").cloned();
            assert_eq!(got.map(|value| value.to_str().unwrap().to_owned()), expected);
        }
    }
    // One that has no session is told, and the connection goes on.
    let refused = blocking(move || {
        let none = management.bind(SandboxId::parse("sbx_cccccccccccccccccccccccccc").unwrap(), vec![]).unwrap_err();
        let long: String = "v".repeat(8192);
        let many = ["a", "b", "c", "d", "e"].map(|name| bearer(name, &long)).to_vec();
        let many = management.bind(SandboxId::parse(TWO).unwrap(), many).unwrap_err();
        management.bind(SandboxId::parse(TWO).unwrap(), vec![]).unwrap();
        [none.code, many.code]
    })
    .await;
    assert_eq!(refused, [Code::SandboxEnded, Code::InvalidValue]);
}

/// The first answer to an inspected request.
async fn inspected(sandbox: &Supervisor, host: &'static str) -> http::StatusCode {
    let stream = sandbox.tunnel(&format!("{host}:443")).await;
    let stream = tls(stream, host, &sandbox.ca_pem, HTTP1).await.unwrap();
    send1(&mut http1(stream).await, get(host, "/")).await.status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_awaits_secrets_lets_nothing_out_before_they_are_bound() {
    let world = World::new();
    let server = world.https("one.test").await;
    world.echo("one.test:7000").await;
    let running = Running::of(&world);
    let awaiting = Open { awaits_secrets: true, ..open(ONE, &["one.test", "one.test:7000"]) };
    let one = Supervisor::try_open(&running, awaiting).await.unwrap();
    // What is denied is denied at once, as the self-test of a sandbox needs it.
    assert!(one.fetch("other.test").await.starts_with("HTTP/1.1 403 "));
    let management = managed(&running).await;
    let bind = async {
        // Both wait by now, or come later: neither makes a difference.
        tokio::task::yield_now().await;
        assert_eq!((world.dials(), server.seen().len()), (0, 0));
        let mut management = management;
        blocking(move || management.bind(SandboxId::parse(ONE).unwrap(), vec![bearer("canary", "first-canary")]))
            .await
            .unwrap();
    };
    // Without secrets this host would pass unread.
    let request = inspected(&one, "one.test");
    let raw = async {
        let mut raw = one.tunnel("one.test:7000").await;
        echoes(&mut raw).await
    };
    let (status, echoed, ()) = tokio::join!(request, raw, bind);
    assert_eq!((status, echoed), (http::StatusCode::OK, true));
    assert_eq!(server.seen()[0].headers["authorization"], "Bearer first-canary");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_displaced_ends_and_has_no_secret_any_more() {
    let world = World::new();
    let server = world.https("one.test").await;
    let running = Running::of(&world);
    let first = Supervisor::open(&running, ONE, &["one.test/**"]).await;
    let mut management = managed(&running).await;
    let management = blocking(move || {
        management.bind(SandboxId::parse(ONE).unwrap(), vec![bearer("canary", "first-canary")]).unwrap();
        management
    })
    .await;
    let stream = tls(first.tunnel("one.test:443").await, "one.test", &first.ca_pem, HTTP1).await.unwrap();
    let mut kept = http1(stream).await;
    assert_eq!(send1(&mut kept, get("one.test", "/")).await.status, http::StatusCode::OK);

    let second = Supervisor::open(&running, ONE, &["one.test/**"]).await;
    // The first supervisor hears why, and the connections of its session are closed.
    let why = blocking(move || {
        let Supervisor { mut session, _gate, .. } = first;
        session.await_decisions(|_| false).unwrap_err().message
    })
    .await;
    assert!(why.contains("another session of the same sandbox"), "{why}");
    let ended = timeout(DEADLINE, kept.send_request(get("one.test", "/"))).await.expect("an end in time");
    assert!(ended.is_err(), "{ended:?}");
    // The second has none until the server binds them to it, and then only it has them.
    assert_eq!(inspected(&second, "one.test").await, http::StatusCode::OK);
    let seen = server.seen();
    let sent = seen.iter().map(|seen| seen.headers.contains_key("authorization")).collect::<Vec<_>>();
    assert_eq!(sent, [true, false]);
    drop(management);
}

fn bearer(name: &str, value: &str) -> Grant {
    let json = format!(
        r#"{{"name":"{name}","placeholder":"saggar-0","binding":{{"rules":["one.test"],"slot":"bearer"}},"value":"{value}"}}"#
    );
    serde_json::from_str(&json).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retired_process_takes_no_session_and_ends_with_its_last_one() {
    let world = World::new();
    world.echo("one.test:7000").await;
    let running = Running::of(&world);
    let one = Supervisor::open(&running, ONE, &["one.test:7000"]).await;
    let mut tunnel = one.tunnel("one.test:7000").await;
    let mut management = managed(&running).await;
    let management = blocking(move || {
        management.retire().unwrap();
        management
    })
    .await;
    let refused = Supervisor::try_open(&running, open(TWO, &[])).await;
    assert!(refused.is_err_and(|message| message.contains("takes no new session")));
    assert!(echoes(&mut tunnel).await);
    // The next server still finds it.
    let next = managed(&running).await;
    assert_eq!(next.sessions, 1);
    one.close().await;
    running.ended().await;
    drop((management, next));
}

// On a clock that moves as soon as nothing else does.
#[tokio::test(start_paused = true)]
async fn a_process_without_a_connection_ends_and_one_with_a_connection_does_not() {
    let world = World::new();
    let dial = world.dial();
    let running =
        Running::start(setting(&world, Arc::new(move |_| Arc::clone(&dial))), geteuid(), Duration::from_secs(10));
    let management = managed(&running).await;
    tokio::time::sleep(FOR_EVER).await;
    assert!(!running.task.is_finished());
    drop(management);
    running.ended().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_gets_no_answer() {
    let world = World::new();
    let dial = world.dial();
    // Root may always connect, so it tries as somebody else.
    let other = Uid::from_raw(geteuid().as_raw() + 64_123);
    let running = Running::start(
        setting(&world, Arc::new(move |_| Arc::clone(&dial))),
        Uid::from_raw(other.as_raw() + 1),
        FOR_EVER,
    );
    let directory = running.address.parent().unwrap();
    std::fs::set_permissions(directory, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&running.address, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let script = "import os,socket,sys\n\
                  if os.geteuid() == 0: os.setuid(int(sys.argv[2]))\n\
                  s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
                  s.connect(sys.argv[1])\n\
                  try:\n    s.send(b'{\"manage\":{\"v\":1}}')\n    print(len(s.recv(4096)))\n\
                  except OSError: print(0)";
    let output = tokio::process::Command::new("python3")
        .args(["-c", script, running.address.to_str().unwrap(), &other.as_raw().to_string()])
        .output()
        .await
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(geteuid().is_root(), Management::connect(&running.address).is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_neither_a_session_nor_management_is_closed() {
    let world = World::new();
    let running = Running::of(&world);
    let address = running.address.clone();
    let answers = blocking(move || {
        let mut session = Session::connect(&address).unwrap();
        // A rule before the session is open.
        let early = session.replace_rules(draft(&["*"])).unwrap_err().message;
        let closed = session.await_decisions(|_| false).unwrap_err().message;
        (early, closed)
    })
    .await;
    assert_eq!(answers.0, "the egress process was misused: a connection begins with `open` or `manage`");
    assert!(answers.1.contains("it ended"), "{}", answers.1);
}
