//! Limits hold, and what they refuse is recorded.

use std::time::Duration;

use http::StatusCode;
use http_body_util::BodyExt as _;
use saggar_domain::net::{Summed, Verdict};
use saggar_egress::limits::Limits;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::client::{HTTP2, get, https1, https2, plain, raw, request, send1, send2, with_body};
use crate::pki::Trust;
use crate::sandbox::{DEADLINE, Sandbox};
use crate::server::Server;
use crate::world::World;

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_and_the_next_after_one_ends_works() {
    let world = World::new();
    world.echo("raw.test:7000").await;
    let limits = Limits { connections: 2, ..Limits::default() };
    let mut sandbox = Sandbox::with_limits(&world, &["raw.test:7000"], limits).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = sandbox.dial("raw.test", 7000).await;
        stream.write_all(b"x").await.unwrap();
        timeout(DEADLINE, stream.read_u8()).await.expect("an echo in time").unwrap();
        held.push(stream);
    }
    assert_eq!(raw(sandbox.dial("raw.test", 7000).await, b"x").await, "");
    assert_eq!(sandbox.decision().await.rule, "egress/connections");
    held.pop();
    assert_eq!(sandbox.decision().await.verdict, Verdict::Allowed);
    let mut stream = sandbox.dial("raw.test", 7000).await;
    stream.write_all(b"x").await.unwrap();
    timeout(DEADLINE, stream.read_u8()).await.expect("an echo in time").unwrap();
}

#[tokio::test]
async fn connections_to_one_host_have_a_limit_that_answers_429() {
    let world = World::new();
    let server = world.http("good.test").await;
    let limits = Limits { connections_per_host: 1, ..Limits::default() };
    let sandbox = Sandbox::with_limits(&world, &["good.test"], limits).await;
    let mut first = plain(&sandbox, "good.test").await;
    assert_eq!(send1(&mut first, get("good.test", "/")).await.status, StatusCode::OK);
    let answer = send1(&mut plain(&sandbox, "good.test").await, get("good.test", "/")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::TOO_MANY_REQUESTS, "egress/connections-per-host"));
    assert_eq!(send1(&mut first, get("good.test", "/")).await.status, StatusCode::OK);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn a_byte_budget_cuts_an_answer_in_the_middle_and_is_not_exceeded() {
    let world = World::new();
    world.https("good.test").await;
    let limits = Limits { bytes: Some(100_000), ..Limits::default() };
    let mut sandbox = Sandbox::with_limits(&world, &["good.test/**"], limits).await;
    let mut sender = https1(&sandbox, "good.test").await;
    let mut body = sender.send_request(get("good.test", "/endless")).await.unwrap().into_body();
    let mut got = 0;
    let ended = loop {
        match timeout(DEADLINE, body.frame()).await.expect("the cut in time") {
            Some(Ok(frame)) => got += frame.into_data().unwrap().len(),
            ended => break ended,
        }
    };
    assert!(ended.is_some_and(|frame| frame.is_err()), "the answer must not look complete");
    assert!(got <= 100_000);
    let decision = sandbox.decision().await;
    assert_eq!((decision.verdict, decision.rule.as_str()), (Verdict::Denied, "egress/bytes"));
    assert!(decision.bytes_up + decision.bytes_down <= 100_000);

    // Nothing is left for a further request.
    let mut request = get("good.test", "/");
    request.headers_mut().insert("x-long", "x".repeat(30_000).parse().unwrap());
    let answer = send1(&mut https1(&sandbox, "good.test").await, request).await;
    assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
}

#[tokio::test]
async fn a_byte_budget_cuts_a_tunnel_and_an_upload() {
    let world = World::new();
    world.echo("raw.test:7000").await;
    // The second one is reached where the kernel moves the bytes.
    for budget in [50_000, 2_000_000] {
        let limits = Limits { bytes_per_host: Some(budget), ..Limits::default() };
        let mut sandbox = Sandbox::with_limits(&world, &["raw.test:7000"], limits).await;
        let (mut reads, mut writes) = sandbox.dial("raw.test", 7000).await.into_split();
        let writing = tokio::spawn(async move { while writes.write_all(&[b'x'; 1000]).await.is_ok() {} });
        let mut back = Vec::new();
        // Either a reset or an end.
        let _ = timeout(DEADLINE, reads.read_to_end(&mut back)).await.expect("the cut in time");
        drop(reads);
        timeout(DEADLINE, writing).await.expect("the cut in time").unwrap();
        let decision = sandbox.decision().await;
        assert_eq!((decision.verdict, decision.rule.as_str()), (Verdict::Denied, "egress/bytes-per-host"));
        let spent = decision.bytes_up + decision.bytes_down;
        assert!(spent <= budget && spent > budget / 2 && back.len() as u64 <= budget, "{spent} of {budget}");
    }

    let server = world.http("good.test").await;
    let limits = Limits { bytes_per_host: Some(50_000), ..Limits::default() };
    let mut sandbox = Sandbox::with_limits(&world, &["good.test"], limits).await;
    let body = "x".repeat(200_000);
    let mut sender = plain(&sandbox, "good.test").await;
    // The answer may come before the cut, or not.
    let _ = sender.send_request(with_body("POST", "/echo", "good.test", &body)).await;
    let decision = sandbox.decision().await;
    assert_eq!((decision.verdict, decision.rule.as_str()), (Verdict::Denied, "egress/bytes-per-host"));
    assert!(decision.bytes_up <= 50_000);
    assert!(server.seen().len() <= 1);
}

#[tokio::test]
async fn too_many_and_too_long_headers_are_refused() {
    let world = World::new();
    let server = world.http("good.test").await;
    let sandbox = Sandbox::allowing(&world, &["good.test"]).await;
    let start = "GET / HTTP/1.1\r\nHost: good.test\r\n";
    for (request, statuses) in [
        (format!("{start}{}\r\n", "X-Many: 1\r\n".repeat(100_000)), ["431", "400"]),
        (format!("{start}X-Long: {}\r\n\r\n", "x".repeat(2_000_000)), ["431", "400"]),
        (format!("GET /{} HTTP/1.1\r\nHost: good.test\r\n\r\n", "x".repeat(2_000_000)), ["414", "431"]),
    ] {
        let answer = raw(sandbox.dial("good.test", 80).await, request.as_bytes()).await;
        // The answer may be lost in a reset, because most of the request was never read.
        let status = answer.get(9..12).unwrap_or(statuses[0]);
        assert!(statuses.contains(&status), "{}", answer.get(..60).unwrap_or(&answer));
    }
    assert_eq!(server.connections(), 0);
    let rest = sandbox.rest().await;
    assert_eq!(rest.len(), 3, "{rest:?}");
    assert!(rest.iter().all(|decision| decision.rule == "egress/malformed-request"));
}

#[tokio::test]
async fn an_http_2_request_with_too_long_headers_never_leaves() {
    let world = World::new();
    let server = world.https("good.test").await;
    let sandbox = Sandbox::allowing(&world, &["good.test/**"]).await;
    let mut sender = https2(&sandbox, "good.test").await;
    let mut request = request("GET", "https://good.test/", "");
    for number in 0..40 {
        let name = http::HeaderName::try_from(format!("x-{number}")).unwrap();
        request.headers_mut().insert(name, "x".repeat(4000).parse().unwrap());
    }
    let answered = timeout(DEADLINE, sender.send_request(request)).await.expect("in time");
    assert!(answered.is_err() || answered.is_ok_and(|answer| !answer.status().is_success()));
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn a_server_with_too_long_headers_is_a_502() {
    let world = World::new();
    let long = format!("HTTP/1.1 200 OK\r\nX-Long: {}\r\nContent-Length: 0\r\n\r\n", "x".repeat(200_000));
    world.lead("good.test:80", &*Server::start_fixed(long.into_bytes()).await);
    let sandbox = Sandbox::allowing(&world, &["good.test"]).await;
    let answer = send1(&mut plain(&sandbox, "good.test").await, get("good.test", "/")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::BAD_GATEWAY, "egress/upstream"));
}

#[tokio::test]
async fn what_does_not_move_for_too_long_is_cut() {
    let world = World::new();
    world.echo("raw.test:7000").await;
    let server = world.http("good.test").await;
    let limits = Limits { idle_time: Duration::from_millis(200), ..Limits::default() };
    let mut sandbox = Sandbox::with_limits(&world, &["raw.test:7000", "good.test"], limits).await;
    let starts: [(&str, u16, &[u8]); 3] = [
        // A tunnel without bytes, a body that never ends, an answer that never ends.
        ("raw.test", 7000, b"x"),
        ("good.test", 80, b"POST /echo HTTP/1.1\r\nHost: good.test\r\nContent-Length: 9\r\n\r\nx"),
        ("good.test", 80, b"GET /stream HTTP/1.1\r\nHost: good.test\r\n\r\n"),
    ];
    for (host, port, bytes) in starts {
        raw(sandbox.dial(host, port).await, bytes).await;
    }
    assert_eq!(server.seen().len(), 2);
    for _ in 0..3 {
        assert_eq!(sandbox.decision().await.reason.as_deref(), Some("no byte moved for too long"));
    }
    assert_eq!(sandbox.rest().await, []);
}

#[tokio::test]
async fn a_head_that_never_ends_is_cut() {
    let world = World::new();
    let server = world.http("good.test").await;
    let limits = Limits { head_time: Duration::from_millis(200), ..Limits::default() };
    let sandbox = Sandbox::with_limits(&world, &["good.test"], limits).await;
    raw(sandbox.dial("good.test", 80).await, b"GET / HTTP/1.1\r\nHost: good").await;
    assert_eq!(server.connections(), 0);
}

#[tokio::test]
async fn decisions_that_nobody_takes_are_counted_and_hold_up_nothing() {
    let world = World::new();
    let limits = Limits { decisions: 2, ..Limits::default() };
    let mut sandbox = Sandbox::with_limits(&world, &[], limits).await;
    let mut sender = https1(&sandbox, "denied.test").await;
    for _ in 0..5 {
        assert_eq!(send1(&mut sender, get("denied.test", "/")).await.status, StatusCode::FORBIDDEN);
    }
    // The rest is summed up.
    let Summed { decisions, further } = sandbox.flood();
    let sums: Vec<_> = decisions.iter().map(|sum| (sum.host.as_str(), sum.verdict, sum.times)).collect();
    assert_eq!((sums, further), (vec![("denied.test", Verdict::Denied, 3)], 0));
    assert!(sandbox.try_decision().is_some());
    assert_eq!(sandbox.rest().await.len(), 1);
}

#[tokio::test]
async fn refusals_that_nobody_takes_do_not_crowd_out_what_was_allowed() {
    let world = World::new();
    world.http("good.test").await;
    let limits = Limits { decisions: 2, ..Limits::default() };
    let mut sandbox = Sandbox::with_limits(&world, &["good.test"], limits).await;
    let mut denied = plain(&sandbox, "denied.test").await;
    for _ in 0..3 {
        assert_eq!(send1(&mut denied, get("denied.test", "/")).await.status, StatusCode::FORBIDDEN);
    }
    assert_eq!(send1(&mut plain(&sandbox, "good.test").await, get("good.test", "/")).await.status, StatusCode::OK);
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(sandbox.decision().await.verdict);
    }
    assert_eq!(told, [Verdict::Denied, Verdict::Denied, Verdict::Allowed]);
    assert_eq!(sandbox.flood().decisions.iter().map(|sum| sum.times).sum::<u64>(), 1);
}

#[tokio::test]
async fn interim_answers_are_bounded_and_count() {
    let world = World::new();
    let server = Server::start_repeating(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n").await;
    world.lead("good.test:80", &server);
    for (bytes, status, rule) in
        [(None, StatusCode::BAD_GATEWAY, "egress/upstream"), (Some(500), StatusCode::TOO_MANY_REQUESTS, "egress/bytes")]
    {
        let limits = Limits { bytes, ..Limits::default() };
        let mut sandbox = Sandbox::with_limits(&world, &["good.test"], limits).await;
        let mut sender = plain(&sandbox, "good.test").await;
        let answer = send1(&mut sender, get("good.test", "/")).await;
        assert_eq!((answer.status, answer.rule()), (status, rule));
        // The server is left, although the program's connection is kept.
        timeout(DEADLINE, server.go.acquire()).await.expect("the end in time").unwrap().forget();
        let decision = sandbox.decision().await;
        assert!(decision.bytes_down > 200, "{decision:?}");
        assert!(bytes.is_none_or(|bytes| decision.bytes_up + decision.bytes_down <= bytes), "{decision:?}");
    }
}

#[tokio::test]
async fn interim_answers_over_http2_are_bounded_too() {
    let world = World::new();
    let server = Server::start_hinting(world.pki.server("good.test", Trust::Good, HTTP2)).await;
    world.lead("good.test:443", &server);
    let mut sandbox = Sandbox::allowing(&world, &["good.test/**"]).await;
    let answer = send2(&mut https2(&sandbox, "good.test").await, request("GET", "https://good.test/", "")).await;
    assert_eq!((answer.status, answer.rule()), (StatusCode::BAD_GATEWAY, "egress/upstream"));
    timeout(DEADLINE, server.go.acquire()).await.expect("the server to be left in time").unwrap().forget();
    assert!(sandbox.decision().await.reason.is_some());
}
