//! Connections whose bytes are copied unread.

use http::StatusCode;
use saggar_domain::net::{Protocol, Verdict};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::client::{HTTP1, HTTP2, get, http1, http2, raw, request, send1, send2, tls};
use crate::sandbox::{DEADLINE, Sandbox};
use crate::world::{PUBLIC, World};

#[tokio::test]
async fn tls_passes_by_name_and_its_bytes_are_counted() {
    let world = World::new();
    world.https("good.test").await;
    let mut sandbox = Sandbox::allowing(&world, &["good.test"]).await;
    let stream = tls(sandbox.dial("good.test", 443).await, "good.test", &world.pki.roots_pem, HTTP2).await.unwrap();
    let mut sender = http2(stream).await;
    assert_eq!(send2(&mut sender, request("GET", "https://good.test/", "")).await.text(), "hello");
    drop(sender);
    let decision = sandbox.decision().await;
    assert_eq!((decision.protocol, decision.verdict), (Protocol::Tls, Verdict::Allowed));
    assert_eq!((decision.rule.as_str(), decision.address), ("good.test", Some(PUBLIC)));
    assert!(decision.bytes_up > 200 && decision.bytes_down > 200, "{decision:?}");
    assert_eq!((decision.method, decision.path), (None, None));
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn one_side_may_end_while_the_other_goes_on() {
    let world = World::new();
    world.echo("raw.test:7000").await;
    let mut sandbox = Sandbox::allowing(&world, &["raw.test:7000"]).await;
    let mut stream = sandbox.dial("raw.test", 7000).await;
    stream.write_all(b"hello").await.unwrap();
    let mut back = [0; 5];
    timeout(DEADLINE, stream.read_exact(&mut back)).await.expect("an echo in time").unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut rest)).await.expect("the end in time").unwrap();
    assert_eq!((&back, rest.as_str()), (b"hello", "goodbye"));
    let decision = sandbox.decision().await;
    assert_eq!((decision.protocol, decision.verdict), (Protocol::Tcp, Verdict::Allowed));
    assert_eq!((decision.bytes_up, decision.bytes_down, decision.reason), (5, 12, None));
    assert_eq!(sandbox.rest().await, []);
}

/// Long enough to leave the copying of the beginning behind, in both directions at once.
#[tokio::test]
async fn a_long_stream_arrives_whole_and_in_order() {
    let world = World::new();
    world.echo("raw.test:7000").await;
    let mut sandbox = Sandbox::allowing(&world, &["raw.test:7000"]).await;
    let sent: Vec<u8> = (0..1_000_003_u32).flat_map(u32::to_be_bytes).collect();
    let (mut reads, mut writes) = sandbox.dial("raw.test", 7000).await.into_split();
    let bytes = sent.clone();
    let writing = tokio::spawn(async move {
        writes.write_all(&bytes).await.unwrap();
        writes.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    timeout(DEADLINE, reads.read_to_end(&mut back)).await.expect("the end in time").unwrap();
    timeout(DEADLINE, writing).await.expect("all sent in time").unwrap();
    let goodbye = back.split_off(sent.len());
    assert!(back == sent, "other bytes came back");
    assert_eq!(goodbye, b"goodbye");
    let decision = sandbox.decision().await;
    assert_eq!((decision.bytes_up, decision.bytes_down), (sent.len() as u64, (sent.len() + goodbye.len()) as u64));
}

#[tokio::test]
async fn port_443_is_for_tls_and_port_80_for_http() {
    let world = World::new();
    let (https, http) = (world.echo("good.test:443").await, world.echo("good.test:80").await);
    for allow in [["good.test"], ["good.test/**"]] {
        let mut sandbox = Sandbox::allowing(&world, &allow).await;
        let answer = raw(sandbox.dial("good.test", 443).await, b"GET / HTTP/1.1\r\nHost: good.test:443\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("TLS"), "{answer}");
        assert_eq!(sandbox.decision().await.rule, "egress/protocol");
        assert_eq!(raw(sandbox.dial("good.test", 443).await, b"SSH-2.0-x\r\n").await.matches("200").count(), 0);
        assert_eq!(sandbox.decision().await.verdict, Verdict::Denied);
        assert!(!raw(sandbox.dial("good.test", 80).await, b"SSH-2.0-x\r\n\r\n").await.contains("SSH"));
        assert_eq!(sandbox.decision().await.verdict, Verdict::Denied);
        assert!(!raw(sandbox.dial("good.test", 80).await, b"\x16\x03\x01\x00\x05hello").await.contains("hello"));
        assert_eq!(sandbox.decision().await.verdict, Verdict::Denied);
        assert_eq!(sandbox.rest().await, []);
    }
    assert_eq!((https.connections(), http.connections()), (0, 0));
}

#[tokio::test]
async fn a_server_that_is_down_is_a_page_inside_tls() {
    let world = World::new();
    let mut sandbox = Sandbox::allowing(&world, &["down.test"]).await;
    let stream = tls(sandbox.dial("down.test", 443).await, "down.test", &sandbox.ca_pem, HTTP1).await.unwrap();
    let answer = send1(&mut http1(stream).await, get("down.test", "/")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::BAD_GATEWAY, "egress/upstream"));
    assert!(sandbox.decision().await.reason.unwrap().contains("can't be reached"));
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn a_session_that_ends_takes_its_connections_with_it() {
    let world = World::new();
    world.echo("raw.test:7000").await;
    let sandbox = Sandbox::allowing(&world, &["raw.test:7000"]).await;
    let mut stream = sandbox.dial("raw.test", 7000).await;
    stream.write_all(b"x").await.unwrap();
    timeout(DEADLINE, stream.read_u8()).await.expect("an echo in time").unwrap();
    let rest = sandbox.rest().await;
    assert_eq!(rest.len(), 1);
    let mut end = Vec::new();
    // Either a reset or an end.
    let _ = timeout(DEADLINE, stream.read_to_end(&mut end)).await.expect("the end in time");
    assert_eq!(end, b"");
}
