//! One connection, one destination: the dialled name, SNI and every request's host must agree.

use std::sync::Arc;

use http::StatusCode;
use saggar_domain::net::Verdict;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::client::{HTTP1, HTTP2, get, http1, http2, https1, https2, plain, raw, request, send1, send2, tls};
use crate::sandbox::Sandbox;
use crate::world::{PUBLIC, World};

/// Both inspected and passed through.
const WAYS: [&[&str]; 2] = [&["good.test", "other.test"], &["good.test/**", "other.test/**"]];

#[tokio::test]
async fn tls_that_asks_for_another_name_than_was_dialled_is_421() {
    for allow in WAYS {
        let world = World::new();
        let (good, other) = (world.https("good.test").await, world.https("other.test").await);
        let mut sandbox = Sandbox::allowing(&world, allow).await;

        let stream = tls(sandbox.dial("good.test", 443).await, "other.test", &sandbox.ca_pem, HTTP1).await.unwrap();
        let answer = send1(&mut http1(stream).await, get("other.test", "/")).await;

        assert_eq!((answer.status, answer.rule()), (StatusCode::MISDIRECTED_REQUEST, "egress/server-name"));
        assert_eq!((good.connections(), other.connections()), (0, 0));
        assert_eq!(sandbox.decision().await.verdict, Verdict::Denied);
        assert_eq!(sandbox.rest().await, []);
    }
}

#[tokio::test]
async fn tls_without_a_name_is_421_where_a_name_was_dialled() {
    for allow in WAYS {
        let world = World::new();
        let good = world.https("good.test").await;
        let mut sandbox = Sandbox::allowing(&world, allow).await;
        // An address as the name: rustls then sends no SNI, and fails at the certificate, which has another name.
        let failed = tls(sandbox.dial("good.test", 443).await, "203.0.113.9", &sandbox.ca_pem, HTTP1).await;
        assert!(failed.is_err());
        assert_eq!(sandbox.decision().await.rule, "egress/server-name");
        assert_eq!(good.connections(), 0);
        assert_eq!(sandbox.rest().await, []);
    }
}

#[tokio::test]
async fn tls_that_hides_a_second_name_does_not_pass_unread() {
    let world = World::new();
    let good = world.https("good.test").await;
    let mut sandbox = Sandbox::allowing(&world, &["good.test"]).await;
    raw_until_closed(sandbox.dial("good.test", 443).await, &hello_with_ech("good.test")).await;
    assert_eq!(sandbox.decision().await.rule, "egress/encrypted-hello");
    assert_eq!(good.connections(), 0);
    assert_eq!(sandbox.rest().await, []);
}

/// Sends bytes and no more.
async fn raw_until_closed(mut stream: TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    raw(stream, b"").await;
}

/// A real ClientHello with the extension for an encrypted one at its end.
fn hello_with_ech(name: &str) -> Vec<u8> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let name = rustls::pki_types::ServerName::try_from(name.to_owned()).unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    let extension = [0xfe, 0x0d, 0, 4, 0, 0, 0, 0];
    // Record header 5, message header 4, version 2, random 32; then session id, cipher suites, compression methods.
    let mut at = 5 + 4 + 2 + 32;
    at += 1 + usize::from(hello[at]);
    at += 2 + usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
    at += 1 + usize::from(hello[at]);
    for length in [3, 7, at] {
        let grown = u16::from_be_bytes([hello[length], hello[length + 1]]) + extension.len() as u16;
        hello[length..length + 2].copy_from_slice(&grown.to_be_bytes());
    }
    hello.extend(extension);
    hello
}

#[tokio::test]
async fn a_request_for_another_host_than_its_connection_is_421() {
    let world = World::new();
    let (good, other) = (world.https("good.test").await, world.https("other.test").await);
    let mut sandbox = Sandbox::allowing(&world, WAYS[1]).await;

    let answer = send1(&mut https1(&sandbox, "good.test").await, get("other.test", "/")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::MISDIRECTED_REQUEST, "egress/host"));
    let answer = send1(&mut plain(&sandbox, "good.test").await, get("other.test", "/")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::MISDIRECTED_REQUEST, "egress/host"));

    assert_eq!((good.connections(), other.connections()), (0, 0));
    assert_eq!(sandbox.decision().await.host, "good.test");
    assert_eq!(sandbox.decision().await.rule, "egress/host");
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn each_stream_of_http_2_is_checked_for_its_own_authority() {
    let world = World::new();
    let server = world.https("good.test").await;
    let sandbox = Sandbox::allowing(&world, WAYS[1]).await;
    let mut sender = https2(&sandbox, "good.test").await;
    for (uri, host, expected) in [
        ("https://good.test/a", "", 200),
        ("https://other.test/a", "", 421),
        ("https://good.test:444/a", "", 421),
        ("http://good.test/a", "", 400),
        ("https://good.test/a", "other.test", 400),
        ("https://good.test/b", "good.test", 200),
    ] {
        let answer = send2(&mut sender, request("GET", uri, host)).await;
        assert_eq!(answer.status.as_u16(), expected, "{uri} {host}");
    }
    assert_eq!(server.seen().len(), 2);
    assert_eq!(sandbox.rest().await.len(), 6);
}

#[tokio::test]
async fn an_address_is_allowed_only_by_a_rule_for_addresses_and_has_no_name() {
    let world = World::new();
    let server = world.https("good.test").await;
    world.lead("203.0.113.7:443", &server);
    let mut sandbox = Sandbox::allowing(&world, &["good.test/**", "203.0.113.7/**"]).await;

    let stream = tls(sandbox.dial_address(PUBLIC, 443).await, "good.test", &sandbox.ca_pem, HTTP1).await.unwrap();
    let answer = send1(&mut http1(stream).await, get("good.test", "/")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::MISDIRECTED_REQUEST, "egress/server-name"));
    assert_eq!(sandbox.decision().await.host, "203.0.113.7");

    let denied = "203.0.113.8".parse().unwrap();
    let stream = tls(sandbox.dial_address(denied, 443).await, "203.0.113.8", &sandbox.ca_pem, HTTP1).await.unwrap();
    let answer = send1(&mut http1(stream).await, get("203.0.113.8", "/")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::FORBIDDEN, "egress/default"));
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_fake_address_without_a_name_and_the_gate_itself_lead_nowhere() {
    let world = World::new();
    let mut sandbox = Sandbox::allowing(&world, &["*"]).await;
    let unknown = sandbox.dial_address("198.19.255.1".parse().unwrap(), 80).await;
    assert_eq!(raw(unknown, b"GET / HTTP/1.1\r\nHost: x.test\r\n\r\n").await, "");
    let decision = sandbox.decision().await;
    assert_eq!((decision.rule.as_str(), decision.host.as_str()), ("egress/destination", "198.19.255.1"));

    assert_eq!(raw(sandbox.dial_gate().await, b"GET / HTTP/1.1\r\nHost: x.test\r\n\r\n").await, "");
    assert_eq!(sandbox.decision().await.rule, "egress/destination");

    let port_0 = sandbox.dial_address(PUBLIC, 0).await;
    assert_eq!(raw(port_0, b"GET / HTTP/1.1\r\nHost: x.test\r\n\r\n").await, "");
    assert_eq!(sandbox.decision().await.rule, "egress/destination");
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn http_2_without_tls_is_not_understood() {
    let world = World::new();
    let server = world.http("good.test").await;
    let sandbox = Sandbox::allowing(&world, &["good.test"]).await;
    let answer = raw(sandbox.dial("good.test", 80).await, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_refusal_for_a_wrong_name_is_shown_by_http_2_as_well() {
    let world = World::new();
    let sandbox = Sandbox::allowing(&world, WAYS[1]).await;
    let stream = tls(sandbox.dial("good.test", 443).await, "other.test", &sandbox.ca_pem, HTTP2).await.unwrap();
    let answer = send2(&mut http2(stream).await, request("GET", "https://other.test/", "")).await;
    assert_eq!(answer.status, StatusCode::MISDIRECTED_REQUEST);
}
