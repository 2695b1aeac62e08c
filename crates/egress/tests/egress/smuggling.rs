//! Requests that two readers could understand differently never leave.

use saggar_domain::net::Verdict;

use crate::client::{HTTP1, raw, tls};
use crate::pki::Trust;
use crate::sandbox::Sandbox;
use crate::world::World;

async fn check_refused(request: &str) {
    let world = World::new();
    let server = world.http("good.test").await;
    let sandbox = Sandbox::allowing(&world, &["good.test"]).await;

    let answer = raw(sandbox.dial("good.test", 80).await, request.as_bytes()).await;

    assert!(answer.starts_with("HTTP/1.1 400 "), "{request:?} got {answer:?}");
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{request:?} got {answer:?}");
    let seen = server.seen();
    assert!(seen.is_empty(), "{request:?} reached the server as {seen:?}");
    let decisions = sandbox.rest().await;
    assert_eq!(decisions.len(), 1, "{request:?}: {decisions:?}");
    assert_eq!(decisions[0].verdict, Verdict::Denied, "{request:?}");
}

const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: good.test\r\n\r\n";

#[tokio::test]
async fn contradicting_lengths_are_refused() {
    let chunked = "5\r\nhello\r\n0\r\n\r\n";
    for head in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5, 6",
        "Content-Length: +5",
        "Content-Length: 0x5",
        "Content-Length: -1",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding:\u{b}chunked",
    ] {
        check_refused(&format!("POST / HTTP/1.1\r\nHost: good.test\r\n{head}\r\n\r\n{chunked}{HIDDEN}")).await;
    }
}

#[tokio::test]
async fn folded_and_malformed_headers_are_refused() {
    for head in [
        "X-Folded: a\r\n b",
        "X-Folded: a\r\n\tTransfer-Encoding: chunked",
        " Host: good.test",
        "X-Nul: a\0b",
        "X-Bare: a\rb",
        "No-Colon",
        "X Space: a",
    ] {
        check_refused(&format!("GET / HTTP/1.1\r\nHost: good.test\r\n{head}\r\n\r\n")).await;
    }
}

#[tokio::test]
async fn a_request_has_exactly_one_host() {
    for request in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test\r\nHost: good.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test\r\nhost: evil.test\r\n\r\n",
        "GET http://evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
        "GET http://good.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        "GET http://good.test@evil.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
        "GET http://evil.test#@good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
        "GET http://evil.test\\@good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test@evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test evil.test\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test:80:80\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: good.test:080\r\n\r\n",
    ] {
        check_refused(request).await;
    }
}

#[tokio::test]
async fn a_malformed_chunk_is_the_programs_fault_and_not_the_servers() {
    for alpn in [None, Some(HTTP1)] {
        for chunks in ["zz\r\n", "3\r\nabcd\r\n", "-1\r\n", "3\nabc\n0\n\n"] {
            check_malformed(chunks, alpn).await;
        }
    }
}

async fn check_malformed(chunks: &str, alpn: Option<&[&str]>) {
    let world = World::new();
    let request = format!("POST /whole HTTP/1.1\r\nHost: good.test\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
    let (answer, mut sandbox) = match alpn {
        None => {
            world.http("good.test").await;
            let sandbox = Sandbox::allowing(&world, &["good.test"]).await;
            (raw(sandbox.dial("good.test", 80).await, request.as_bytes()).await, sandbox)
        }
        Some(alpn) => {
            world.https_with("good.test", Trust::Good, alpn).await;
            let sandbox = Sandbox::allowing(&world, &["good.test/**"]).await;
            let stream = tls(sandbox.dial("good.test", 443).await, "good.test", &sandbox.ca_pem, HTTP1).await.unwrap();
            (raw(stream, request.as_bytes()).await, sandbox)
        }
    };
    assert!(answer.starts_with("HTTP/1.1 400 "), "{chunks:?} {alpn:?} got {answer:?}");
    let decision = sandbox.decision().await;
    assert_eq!((decision.verdict, decision.rule.as_str()), (Verdict::Denied, "egress/malformed-request"), "{chunks:?}");
}
