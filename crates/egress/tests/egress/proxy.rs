//! The proxy port: CONNECT, SOCKS5 and plain HTTP lead to the same decisions.

use http::StatusCode;
use saggar_domain::net::{Protocol, Verdict};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::client::{HTTP1, get, http1, raw, send1, tls};
use crate::sandbox::{DEADLINE, Sandbox};
use crate::world::World;

async fn connect(sandbox: &Sandbox, to: &str) -> (String, TcpStream) {
    let mut stream = TcpStream::connect(sandbox.proxy).await.unwrap();
    stream.write_all(format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        match timeout(DEADLINE, stream.read_u8()).await.expect("an answer in time") {
            Ok(byte) => answer.push(byte),
            Err(_) => break,
        }
    }
    (String::from_utf8(answer).unwrap(), stream)
}

async fn socks(sandbox: &Sandbox, host: &[u8], port: u16) -> (u8, TcpStream) {
    let mut stream = TcpStream::connect(sandbox.proxy).await.unwrap();
    let mut hello = vec![5, 1, 0, 5, 1, 0, 3, u8::try_from(host.len()).unwrap()];
    hello.extend(host);
    hello.extend(port.to_be_bytes());
    stream.write_all(&hello).await.unwrap();
    let mut answer = [0; 12];
    timeout(DEADLINE, stream.read_exact(&mut answer)).await.expect("an answer in time").unwrap();
    (answer[3], stream)
}

#[tokio::test]
async fn connect_leads_to_inspected_tunnelled_and_denied_hosts() {
    let world = World::new();
    world.https("inspected.test").await;
    world.https("tunnelled.test").await;
    let denied = world.https("denied.test").await;
    let mut sandbox = Sandbox::allowing(&world, &["inspected.test/**", "tunnelled.test"]).await;
    for (host, pem, status, protocol) in [
        ("inspected.test", &sandbox.ca_pem.clone(), 200, Protocol::Https),
        ("tunnelled.test", &world.pki.roots_pem, 200, Protocol::Tls),
        ("denied.test", &sandbox.ca_pem.clone(), 403, Protocol::Https),
    ] {
        let (answer, stream) = connect(&sandbox, &format!("{host}:443")).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let mut sender = http1(tls(stream, host, pem, HTTP1).await.unwrap()).await;
        assert_eq!(send1(&mut sender, get(host, "/")).await.status.as_u16(), status, "{host}");
        drop(sender);
        let decision = sandbox.decision().await;
        assert_eq!((decision.host.as_str(), decision.protocol), (host, protocol));
    }
    assert_eq!(denied.connections(), 0);
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn connect_and_tls_must_name_the_same_host() {
    let world = World::new();
    world.https("good.test").await;
    let other = world.https("other.test").await;
    let sandbox = Sandbox::allowing(&world, &["good.test", "other.test"]).await;
    let (_, stream) = connect(&sandbox, "good.test:443").await;
    let mut sender = http1(tls(stream, "other.test", &sandbox.ca_pem, HTTP1).await.unwrap()).await;
    assert_eq!(send1(&mut sender, get("other.test", "/")).await.status, StatusCode::MISDIRECTED_REQUEST);
    assert_eq!(other.connections(), 0);
}

#[tokio::test]
async fn connect_to_a_port_without_a_protocol_says_at_once_if_it_fails() {
    let world = World::new();
    world.echo("raw.test:7000").await;
    let mut sandbox = Sandbox::allowing(&world, &["raw.test:7000", "down.test:7000"]).await;
    let (answer, mut stream) = connect(&sandbox, "raw.test:7000").await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    stream.write_all(b"x").await.unwrap();
    assert_eq!(timeout(DEADLINE, stream.read_u8()).await.expect("an echo in time").unwrap(), b'x');
    drop(stream);
    assert_eq!(sandbox.decision().await.verdict, Verdict::Allowed);
    let (answer, _) = connect(&sandbox, "down.test:7000").await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    assert!(sandbox.decision().await.reason.is_some());
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn connect_without_a_plain_host_and_port_is_refused() {
    let world = World::new();
    let sandbox = Sandbox::allowing(&world, &["*"]).await;
    let mut refused = 0;
    for request in [
        "CONNECT good.test HTTP/1.1\r\nHost: good.test\r\n\r\n",
        "CONNECT good.test:0 HTTP/1.1\r\nHost: good.test\r\n\r\n",
        "CONNECT good.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n",
        "CONNECT x@good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n",
        "CONNECT good.test:443/path HTTP/1.1\r\nHost: good.test:443\r\n\r\n",
        "CONNECT 0177.0.0.1:443 HTTP/1.1\r\nHost: 0177.0.0.1:443\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test\r\n\r\n",
        "GET https://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
    ] {
        let answer = raw(TcpStream::connect(sandbox.proxy).await.unwrap(), request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{request:?} got {answer:?}");
        refused += 1;
    }
    let rest = sandbox.rest().await;
    assert_eq!(rest.len(), refused, "{rest:?}");
    assert!(rest.iter().all(|decision| decision.verdict == Verdict::Denied));
}

#[tokio::test]
async fn plain_http_to_the_proxy_is_decided_for_each_request_and_host() {
    let world = World::new();
    let (good, other) = (world.http("good.test").await, world.http("other.test").await);
    let mut sandbox = Sandbox::allowing(&world, &["good.test", "other.test"]).await;
    let mut sender = http1(TcpStream::connect(sandbox.proxy).await.unwrap()).await;
    for (host, status) in [("good.test", 200), ("denied.test", 403), ("other.test", 200), ("good.test", 200)] {
        let answer = send1(&mut sender, get(host, &format!("http://{host}/x"))).await;
        assert_eq!(answer.status.as_u16(), status, "{host}");
        let decision = sandbox.decision().await;
        assert_eq!((decision.host.as_str(), decision.path.as_deref()), (host, Some("/x")));
    }
    assert_eq!((good.connections(), other.connections()), (1, 1));
    assert_eq!(good.seen()[0].target, "/x");
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn socks5_leads_to_the_same_decisions() {
    let world = World::new();
    world.https("good.test").await;
    world.echo("raw.test:7000").await;
    let mut sandbox = Sandbox::allowing(&world, &["good.test/**", "raw.test:7000", "down.test:7000"]).await;
    for (host, status) in [("good.test", 200), ("denied.test", 403)] {
        let (reply, stream) = socks(&sandbox, host.as_bytes(), 443).await;
        assert_eq!(reply, 0);
        let mut sender = http1(tls(stream, host, &sandbox.ca_pem, HTTP1).await.unwrap()).await;
        assert_eq!(send1(&mut sender, get(host, "/")).await.status.as_u16(), status, "{host}");
        assert_eq!(sandbox.decision().await.host, host);
    }
    let (reply, mut stream) = socks(&sandbox, b"raw.test", 7000).await;
    assert_eq!(reply, 0);
    stream.write_all(b"x").await.unwrap();
    assert_eq!(timeout(DEADLINE, stream.read_u8()).await.expect("an echo in time").unwrap(), b'x');
    drop(stream);
    assert_eq!(sandbox.decision().await.host, "raw.test");
    assert_ne!(socks(&sandbox, b"down.test", 7000).await.0, 0);
    assert!(sandbox.decision().await.reason.is_some());
    assert_ne!(socks(&sandbox, b"good.test\0.evil.test", 443).await.0, 0);
    let decision = sandbox.decision().await;
    assert_eq!((decision.protocol, decision.rule.as_str()), (Protocol::Socks, "egress/socks"));
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn a_name_that_looks_like_data_is_reported_whichever_way_it_comes() {
    const DATA: &str = "nbswy3dpeb3w64tmmqwcayjanrxw4zzanvsxg43bm5sse5dimvzgk";
    let world = World::new();
    let rules = ["*.one.test", "*.two.test:7000", "*.three.test"];
    let mut sandbox = Sandbox::allowing(&world, &rules).await;
    connect(&sandbox, &format!("{DATA}.two.test:7000")).await;
    socks(&sandbox, format!("{DATA}.b.two.test").as_bytes(), 7000).await;
    let request =
        format!("GET http://{DATA}.three.test/ HTTP/1.1\r\nHost: {DATA}.three.test\r\nConnection: close\r\n\r\n");
    raw(TcpStream::connect(sandbox.proxy).await.unwrap(), request.as_bytes()).await;
    let mut reported = Vec::new();
    for _ in 0..5 {
        let decision = sandbox.decision().await;
        if decision.rule == "egress/dns-data" {
            assert_eq!(decision.verdict, Verdict::Allowed);
            reported.push(decision.host);
        }
    }
    // Once for each domain.
    assert_eq!(reported, [format!("{DATA}.two.test"), format!("{DATA}.three.test")]);
    assert_eq!(sandbox.rest().await, []);
}
